"""The training loop, from a config and a work directory to a trained model. Reads from top to bottom."""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jacreg_train.telemetry import (
    ForgivingConsole,
    JsonLinesWriter,
    MetricWriter,
    ProgressWriter,
    StepClock,
    WandbWriter,
    WriterGroup,
    device_peak_bytes,
    read_records,
    read_run_record,
    resident_bytes,
    write_run_record,
)
from jacreg_train.training import setup
from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.errors import ConfigError, Diverged, Interrupted, WorkdirError
from jacreg_train.training.estimator_choice import as_config, choose_estimator, with_choice
from jacreg_train.training.finite import describe, names_of
from jacreg_train.training.out_of_memory import answered_with_the_flag, check_fits, check_state_fits, way_out
from jacreg_train.training.processes import done_by_first, is_first, largest_of_all, wait_for_all
from jacreg_train.training.programs import compile_programs, penalty_time_share
from jacreg_train.training.state import TrainState
from jacreg_train.training.step import changing
from jacreg_train.training.stopping import StopRequest
from jacreg_train.training.summary import print_summary, summarize
from jacreg_train.training.validation import validate
from jacreg_train.training.workdir import check_same_config, failures_named, locked

PATIENCE_S = 0.3  # how long a checkpoint waits for the record's and the last checkpoint's writes, each
NO_METRICS = "the metrics cannot be written"
MOST_SKIPPED_IN_A_ROW = 100  # of steps; a run that skips more is stuck

_logger = logging.getLogger(__name__)


def train_and_evaluate(
    config: ConfigDict,
    workdir: str | Path,
    *,
    argv: Sequence[str] = (),
    extra_writers: Iterable[MetricWriter] = (),
) -> dict[str, float]:
    """Train a model as the config says; resume where the work directory has a checkpoint.

    Args:
      config: a child of ``configs/default.py``.
      workdir: for config, metrics and checkpoints; made where missing.
      argv: the command line, for the record.
      extra_writers: get every record, too (a sweep's pruner, say).

    Returns:
      The last value of every metric, the median of ``time/step_ms``, and ``step``.

    Raises:
      ConfigError: a mistake in the config or the work directory, before anything compiles.
      DataError: a data set that cannot be had.
      Diverged: a loss, penalty, gradient or update was infinite or nan; the state before it is in a checkpoint.
      WorkdirError: a record or checkpoint could not be written (a full disk, say), or the folder is gone.
      OutOfMemory: the step takes more memory than there is; names the flag to change.
      Interrupted: SIGTERM or Ctrl-C came; a checkpoint is written.
    """
    workdir = Path(workdir)
    validate(config, num_devices=jax.device_count())
    run = setup.build(config)
    plain_config = config.to_dict()
    console = ForgivingConsole(quiet=not is_first())
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        lock = stack.enter_context(locked(workdir, f".lock{jax.process_index() or ''}"))
        check_same_config(workdir, plain_config, lambda each: setup.schedule_length(each, run.num_train_examples))
        check_state_fits(jax.eval_shape(run.fresh), config)
        if is_first() and lock.after_a_kill:
            _logger.warning("the run before was killed; if for memory, %s", way_out(config))
        with failures_named(workdir, "the run's record cannot be written"):
            done_by_first(lambda: write_run_record(workdir, plain_config, argv))

        # The estimator, where it is to be chosen, before anything else compiles.
        stack.enter_context(answered_with_the_flag(config))
        choice = choose_estimator(config, run, workdir)
        if choice is not None:
            console.print(str(choice), markup=False)
            run = setup.build(with_choice(config, choice))

        # State and data position, fresh or from the newest checkpoint.
        checkpoints = stack.enter_context(
            Checkpoints(
                workdir,
                keep_latest=config.checkpoint.keep_latest,
                keep_best=config.checkpoint.keep_best,
                check_workdir=lock.check,
            )
        )
        state, batches, first_step = run.init(), run.make_batches(), 0
        restored = checkpoints.restore_latest(state)
        if restored is not None:
            state, position = restored
            batches.set_state(position)
            first_step = int(state.step)
            console.print(f"resuming {workdir} after step {first_step}", markup=False)
        writers = stack.enter_context(
            _closed_at_the_end(
                _writers(
                    config, workdir, run.num_steps, first_step, extra_writers, as_config(choice), lock.check, console
                ),
                workdir,
            )
        )

        # Programs, compiled ahead of the first step, and what is measured once.
        clock = StepClock()
        console.print("compiling the training step")
        with clock.compiling():
            programs = compile_programs(
                run,
                state,
                batches.example(),
                share=config.log.penalty_share_rounds > 0,
                norms=config.log.gradient_norms,
            )
        check_fits(programs.compiled_bytes, config)
        figures = _gib("compiled", programs.compiled_bytes)  # join the next record
        if first_step < run.num_steps:
            figures |= penalty_time_share(programs, state, batches.example(), config.log.penalty_share_rounds)

        names = names_of({"params": state.params}, changing(state))
        learning_rate = jax.jit(run.schedule)  # op by op it would take milliseconds
        skipped_in_a_row, disk_is_slow = 0, False
        for step in range(first_step + 1, run.num_steps + 1):  # step: how many are done after this one
            due = _due(plain_config, step, run.num_steps)
            position = batches.get_state()
            with clock.data():
                batch = batches.next()
            norms = {}
            if due["log"] and programs.gradient_norms is not None:
                norms = jax.block_until_ready(programs.gradient_norms(state, *batch))
            kind, train_step = programs.train_step(step - 1)
            with clock.step(kind) as wait_for:
                results = train_step(state, *batch)
                batches.read_ahead()  # while the devices compute
                state, step_metrics = wait_for(results)
            finite = np.asarray(step_metrics.pop("finite"))
            if finite.all():
                skipped_in_a_row = 0
            else:
                problem = f"step {step}: {describe(finite, names, step_metrics)}"
                skipped_in_a_row += 1
                if config.on_nonfinite == "stop" or skipped_in_a_row > MOST_SKIPPED_IN_A_ROW:
                    kept = f"the state before it is in checkpoint {step - 1}"
                    try:
                        with failures_named(workdir, NO_METRICS):
                            writers.flush()
                        checkpoints.save(
                            _before(state), step=step - 1, position=position, config=plain_config, accuracy=None
                        )
                        checkpoints.wait()
                    except WorkdirError as error:
                        kept = str(error)
                    raise Diverged(f"{problem}; {kept}")
                if skipped_in_a_row == 1:
                    _logger.warning("%s; the step is skipped", problem)

            record: dict[str, float] = {}
            if due["log"]:
                record |= norms | step_metrics | clock.take(config.batch_size) | figures
                record |= {"train/learning_rate": learning_rate(step - 1), "train/epoch": batches.epoch}
                if config.on_nonfinite == "skip":
                    record["train/skipped_steps"] = state.skipped
                record |= _gib("resident", resident_bytes()) | _gib("device_peak", device_peak_bytes())
                figures = {}
            if due["evaluate"]:
                record |= run.evaluate(state)
            if record:
                record = {name: float(value) for name, value in record.items()}
                with failures_named(workdir, NO_METRICS):
                    writers.write(step, record)
            checkpoints.wait(0)
            stopped_by = largest_of_all(stop.signal or 0)
            if stopped_by or due["save"]:
                # A checkpoint never gets ahead of the record: a resumed run writes the lines after it again.
                patience_s = None if stopped_by or step == run.num_steps else 0 if disk_is_slow else PATIENCE_S
                with failures_named(workdir, NO_METRICS):
                    behind = not (writers.flush(patience_s) and checkpoints.wait(patience_s))
                was_slow, disk_is_slow = disk_is_slow, bool(largest_of_all(int(behind)))
                if disk_is_slow and not was_slow:
                    _logger.warning(
                        "the disk under %s is slow: checkpoint %d, and those until it has caught up, are left out",
                        workdir,
                        step,
                    )
                if not disk_is_slow:
                    checkpoints.save(
                        state,
                        step=step,
                        position=batches.get_state(),
                        config=plain_config,
                        accuracy=record.get("test/accuracy"),
                    )
            if stopped_by and step < run.num_steps:
                raise Interrupted(stopped_by, step)
            if due["share"]:
                figures |= penalty_time_share(programs, state, batch, config.log.penalty_share_rounds)

    wait_for_all("the last record")
    summary = summarize(read_records(workdir))
    print_summary(summary, workdir, wandb=config.wandb.mode != "disabled", console=console)
    return summary


def _due(config: dict[str, Any], step: int, num_steps: int) -> dict[str, bool]:
    """What happens after a step; log, evaluation and checkpoint always happen after the last."""
    last = step == num_steps
    share_every = config["log"]["penalty_share_every_steps"]
    return {
        "log": last or step % config["log"]["every_steps"] == 0,
        "evaluate": last or step % config["evaluation"]["every_steps"] == 0,
        "save": last or step % config["checkpoint"]["every_steps"] == 0,
        "share": not last and share_every is not None and step % share_every == 0,
    }


def _before(state: TrainState) -> TrainState:
    """The state before a skipped step."""
    return dataclasses.replace(state, step=state.step - 1, skipped=state.skipped - 1)


def _writers(
    config: ConfigDict,
    workdir: Path,
    num_steps: int,
    first_step: int,
    extra_writers: Iterable[MetricWriter],
    extra_config: dict[str, Any],
    check_workdir: Callable[[], None],
    console: ForgivingConsole,
) -> WriterGroup:
    """The local record first: it is the durable one. Only the first process writes."""
    if not is_first():
        return WriterGroup([])
    try:
        with failures_named(workdir, NO_METRICS):
            local_record = JsonLinesWriter(
                workdir / "metrics.jsonl", restored_step=first_step or None, check=check_workdir
            )
    except ValueError as error:
        raise ConfigError(f"{error}; repair the line or move the file away") from None
    writers: list[MetricWriter] = [local_record, ProgressWriter(num_steps, first_step=first_step, console=console)]
    if config.wandb.mode != "disabled":
        writers.append(
            WandbWriter(
                workdir,
                mode=config.wandb.mode,
                project=config.wandb.project,
                group=config.wandb.group,
                name=config.wandb.name,
                tags=config.wandb.tags,
                run_id=_run_id(workdir),
                config=config.to_dict() | extra_config,
            )
        )
    return WriterGroup([*writers, *extra_writers])


@contextlib.contextmanager
def _closed_at_the_end(writers: WriterGroup, workdir: Path) -> Iterator[WriterGroup]:
    """Closes the writers; of two failures the first is told."""
    try:
        yield writers
    except BaseException:
        with contextlib.suppress(Exception):
            writers.close()
        raise
    with failures_named(workdir, NO_METRICS):
        writers.close()


def _run_id(workdir: Path) -> str:
    """The same for every part of a run, another one for every run: from how and when it was first started."""
    record = read_run_record(workdir)
    first_start = {name: record[name] for name in ("argv", "started")} | {"workdir": str(workdir)}
    return hashlib.sha256(json.dumps(first_start).encode()).hexdigest()[:12]


def _gib(kind: str, size: int | None) -> dict[str, float]:
    """A memory metric, or nothing where the figure is not to be had."""
    return {} if size is None else {f"memory/{kind}_gib": size / 2**30}
