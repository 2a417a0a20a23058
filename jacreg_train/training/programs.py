"""The compiled programs of a run: made ahead of the first step, so that no step time holds a compilation."""

import dataclasses
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from jacreg_train.telemetry import compare_times, compiled_bytes
from jacreg_train.training.batches import StepBatch
from jacreg_train.training.setup import Run
from jacreg_train.training.state import TrainState
from jacreg_train.training.step import Objective, make_gradient_norms, make_train_step

StepProgram = Callable[..., tuple[TrainState, dict[str, jax.Array]]]


@dataclasses.dataclass(frozen=True)
class Programs:
    """What the loop calls, compiled for the shapes of the run.

    Attributes:
      penalised: the regularised step, None without a penalty. The steps take their state's memory.
      plain: the step without the penalty, None where nothing needs it.
      gradient_norms: of both parts of the loss, None where they aren't logged.
      every_steps: the regularised step is every so many-th.
    """

    penalised: StepProgram | None
    plain: StepProgram | None
    gradient_norms: Callable[..., dict[str, jax.Array]] | None
    every_steps: int

    def train_step(self, step: int) -> tuple[str, StepProgram]:
        """The kind and the program of the step that follows ``step`` done ones."""
        if self.penalised is not None and step % self.every_steps == 0:
            return "penalised", self.penalised
        assert self.plain is not None
        return "plain", self.plain

    @property
    def compiled_bytes(self) -> int | None:
        """Bytes per device of the step with the penalty, or of the plain one where there is none."""
        return compiled_bytes(self.penalised or self.plain)


def compile_programs(run: Run, state: TrainState, batch: StepBatch, *, share: bool, norms: bool) -> Programs:
    """Compile what a run needs.

    Args:
      run: the parts of the run.
      state, batch: for their shapes and placement; nothing runs.
      share: whether the penalty's share of the time will be measured, which needs the plain step.
      norms: whether the gradient norms of both parts are logged.
    """

    def compiled(function: Callable[..., Any], *, donate: bool) -> Any:
        return run.devices.map(function, num_batches=2, donate=donate).lower(state, *batch).compile()

    def train_step(objective: Objective) -> StepProgram:
        return compiled(make_train_step(objective, run.optimizer), donate=True)

    objective, term = run.objective, run.objective.term
    if term is None:
        return Programs(penalised=None, plain=train_step(objective), gradient_norms=None, every_steps=1)
    needs_plain = share or term.every_steps > 1
    return Programs(
        penalised=train_step(objective),
        plain=train_step(dataclasses.replace(objective, term=None)) if needs_plain else None,
        gradient_norms=compiled(make_gradient_norms(objective), donate=False) if norms else None,
        every_steps=term.every_steps,
    )


def penalty_time_share(programs: Programs, state: TrainState, batch: StepBatch, rounds: int) -> dict[str, float]:
    """``time/penalty_share``, the share of the time that the penalty takes: both steps, timed in turns.

    With the penalty on every k-th step it is the extra time of one such step over the time of k steps. The
    given state stays as it is; a copy of it trains for the length of the measurement.

    Returns:
      The metric; nothing for 0 rounds or where there is no penalty.
    """
    if programs.penalised is None or programs.plain is None or rounds == 0:
        return {}
    copy = jax.tree.map(jnp.copy, state)

    def timed(program: StepProgram) -> Callable[[], Any]:
        def run_step() -> Any:
            nonlocal copy
            copy, metrics = program(copy, *batch)
            return metrics

        return run_step

    times = compare_times({"with": timed(programs.penalised), "without": timed(programs.plain)}, rounds)
    return {"time/penalty_share": cycle_share(times["with"], times["without"], programs.every_steps)}


def cycle_share(with_penalty: list[float], without: list[float], every_steps: int) -> float:
    """The penalty's share of the time of ``every_steps`` steps, one of which has it, by medians."""
    penalised, plain = median(with_penalty), median(without)
    return (penalised - plain) / (penalised + (every_steps - 1) * plain)
