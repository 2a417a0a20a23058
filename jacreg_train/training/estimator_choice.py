"""``jacobian.estimator.name = "auto"``: one choice a run, made before anything else compiles, and kept in its folder.

A resumed run takes the recorded choice, so that it computes what the uninterrupted one would have.
"""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from jacreg_train import jacobian
from jacreg_train.jacobian import Candidate, Choice
from jacreg_train.telemetry.writers import replace_file
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.processes import done_by_first
from jacreg_train.training.setup import Run
from jacreg_train.training.step import eval_apply

CHOICE_FILE = "estimator_choice.jsonl"  # the choice, then a line for each candidate


def choose_estimator(config: ConfigDict, run: Run, workdir: Path) -> Choice | None:
    """The recorded choice if it was made for the same problem, else a new one; None where the config names its own.

    Raises:
      ConfigError: nothing fits into the budget.
    """
    if config.jacobian.estimator.name != "auto" or run.objective.term is None:
        return None
    problem = _problem(config, run)
    recorded = _read(workdir / CHOICE_FILE, problem)
    if recorded is not None:
        return recorded
    done_by_first(lambda: replace_file(workdir / CHOICE_FILE, _to_lines(_choose(config, run), problem)))
    return _read(workdir / CHOICE_FILE, problem)


def with_choice(config: ConfigDict, choice: Choice) -> ConfigDict:
    """The config that names the chosen estimator and its options."""
    resolved = copy.deepcopy(config)
    estimator = resolved.jacobian.estimator
    estimator.name = choice.estimator
    estimator.memory_budget_gib = estimator.allow_stochastic = None
    for name, value in choice.options.items():
        estimator[name] = value
    return resolved


def _choose(config: ConfigDict, run: Run) -> Choice:
    state = jax.eval_shape(run.fresh)
    model, normalize = run.objective.model, run.objective.normalize
    model_state = jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), state.model_state)
    images = jax.ShapeDtypeStruct((_points_per_device(run), *run.image_shape), "uint8")
    estimator = config.jacobian.estimator
    try:
        return jacobian.choose(
            eval_apply(model, model_state),
            state.params,
            jax.eval_shape(normalize, images),
            wrt=config.jacobian.wrt,
            memory_budget_gib=estimator.memory_budget_gib,
            allow_stochastic=bool(estimator.allow_stochastic),
        )
    except ValueError as error:
        raise ConfigError(f"config.jacobian.estimator: {error}") from None


def _points_per_device(run: Run) -> int:
    assert run.objective.term is not None
    return run.objective.term.num_points // run.devices.count


def _problem(config: ConfigDict, run: Run) -> dict[str, Any]:
    """What a choice depends on, as JSON values."""
    name, estimator = config.model.name, config.jacobian.estimator
    problem = {
        "model": {"name": name, **(config.model[name].to_dict() if name in config.model else {})},
        "points_per_device": _points_per_device(run),
        "image_shape": run.image_shape,
        "precision": config.precision,
        "wrt": config.jacobian.wrt,
        "memory_budget_gib": estimator.memory_budget_gib,
        "allow_stochastic": bool(estimator.allow_stochastic),
        "device": jax.devices()[0].device_kind,
    }
    return json.loads(json.dumps(problem))


def _to_lines(choice: Choice, problem: dict[str, Any]) -> str:
    head = {
        "estimator": choice.estimator,
        "options": dict(choice.options),
        "memory_budget_gib": choice.memory_budget_gib,
        "problem": problem,
    }
    return "".join(json.dumps(row) + "\n" for row in [head, *choice.rows()])


def _read(path: Path, problem: dict[str, Any]) -> Choice | None:
    """The file's choice; None where there is none, it is another problem's, or it is no such file."""
    try:
        head, *rows = (json.loads(line) for line in path.read_text().splitlines())
        if head.pop("problem") != problem:
            return None
        return Choice(**head, candidates=tuple(Candidate(**row) for row in rows))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def as_config(choice: Choice | None) -> dict[str, Any]:
    """The choice for a logger's record of the config; {} for None."""
    return {} if choice is None else {"estimator_choice": dataclasses.asdict(choice) | {"candidates": choice.rows()}}
