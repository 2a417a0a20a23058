"""Checks of a whole config before anything compiles: names, types, ranges, combinations.

Every error is one line that names the field, its value and the choices.
"""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import default
from jacreg_train import jacobian
from jacreg_train.data import AUGMENTATIONS
from jacreg_train.training.devices import PARALLEL
from jacreg_train.training.errors import ConfigError, wrong_choice
from jacreg_train.training.optimizers import OPTIMIZERS, SCHEDULES, options_of
from jacreg_train.training.penalty import PENALTIES
from jacreg_train.training.points import POINTS
from models import MODELS

CHOICES: dict[str, Collection[str]] = {
    "parallel": PARALLEL,
    "precision": ("float32", "bfloat16", "float16"),
    "on_nonfinite": ("stop", "skip"),
    "dataset.augmentation": AUGMENTATIONS,
    "model.name": MODELS,
    "jacobian.wrt": ("params", "inputs"),
    "jacobian.penalty": PENALTIES,
    "jacobian.points": POINTS,
    "jacobian.estimator.name": jacobian.ESTIMATORS,
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule": SCHEDULES,
    "wandb.mode": ("offline", "online", "disabled"),
}

RANGES = {
    "seed": "[0, 4294967295]",
    "num_steps": "[1, inf)",
    "num_epochs": "(0, inf)",
    "batch_size": "[1, inf)",
    "mesh.model": "[1, inf)",
    # Far beyond any use: a slip of the keyboard must not compile for minutes.
    "dataset.synthetic.num_classes": "[1, 1000000]",
    "dataset.synthetic.num_examples": "[1, 100000000]",
    "model.cnn.kernel_size": "[1, 99]",
    "model.haiku_cnn.kernel_size": "[1, 99]",
    "jacobian.weight": "[0, inf)",
    "jacobian.batch_size": "[1, inf)",
    "jacobian.every_steps": "[1, inf)",
    "jacobian.estimator.example_chunk": "[1, inf)",
    "jacobian.estimator.output_chunk": "[1, inf)",
    "jacobian.estimator.num_probes": "[1, 1000000]",
    "jacobian.estimator.memory_budget_gib": "(0, inf)",
    "optimizer.learning_rate": "(0, inf)",
    "optimizer.warmup_steps": "[0, inf)",
    "optimizer.decay_steps": "[1, inf)",
    "optimizer.final_fraction": "[0, 1]",
    "optimizer.clip_norm": "(0, inf)",
    "optimizer.weight_decay": "[0, inf)",
    "optimizer.momentum": "[0, 1)",
    "optimizer.beta1": "[0, 1)",
    "optimizer.beta2": "[0, 1)",
    "optimizer.epsilon": "(0, inf)",
    "log.every_steps": "[1, inf)",
    "log.penalty_share_rounds": "[0, inf)",
    "log.penalty_share_every_steps": "[1, inf)",
    "evaluation.every_steps": "[1, inf)",
    "evaluation.batch_size": "[1, inf)",
    "evaluation.jacobian_examples": "[0, inf)",
    "checkpoint.every_steps": "[1, inf)",
    "checkpoint.keep_latest": "[1, inf)",
    "checkpoint.keep_best": "[0, inf)",
}


def validate(config: ConfigDict, *, num_devices: int) -> None:
    """Refuse a config that cannot run as it is meant.

    What only shows later is checked later, still before anything compiles: data sets when they are opened,
    the arguments of models and estimators when these are made.

    Raises:
      ConfigError: one line with field, value and choices.
    """
    _check_fields(config)
    fields = dict(leaves(config))
    for field, choices in CHOICES.items():
        if fields[field] not in choices:
            raise wrong_choice(field, fields[field], choices)
    for field, interval in RANGES.items():
        if fields[field] is not None and not _inside(fields[field], interval):
            raise ConfigError(f"config.{field} = {fields[field]!r}: choose a value in {interval}")
    _check_lengths(config)
    _check_mesh(config, num_devices)
    _check_points(config, num_devices // config.mesh.model)
    _check_target(config)
    _check_auto(config)
    _check_options(config, "optimizer.name", OPTIMIZERS[config.optimizer.name], _options_of_all(OPTIMIZERS))
    _check_options(config, "optimizer.schedule", SCHEDULES[config.optimizer.schedule], _options_of_all(SCHEDULES))


def check_overrides(config: ConfigDict, overridden: Collection[str]) -> None:
    """Refuse command-line overrides inside a sub-dict that the config's choice does not use.

    A config file may hold arguments for several models; an override of one that isn't chosen is a mistake.

    Args:
      config: with the overrides in place.
      overridden: dotted names of the fields that the command line gave.

    Raises:
      ConfigError: names the override, the choice and the fields that it has.
    """
    datasets = {config.dataset.name, config.jacobian.context.name}
    unused = {f"model.{name}.": ("model.name", config.model.name) for name in MODELS if name != config.model.name}
    if "synthetic" not in datasets:
        unused["dataset.synthetic."] = ("dataset.name", config.dataset.name)
    for field in overridden:
        for prefix, (chooser, choice) in unused.items():
            if field.startswith(prefix):
                group = config[chooser.split(".")[0]].get(choice)
                fields = f" (choices: {', '.join(group)})" if isinstance(group, ConfigDict) else ""
                raise ConfigError(f"config.{field} has no meaning with config.{chooser} = {choice!r}{fields}")


def leaves(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every field."""
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _check_fields(config: ConfigDict, like: ConfigDict | None = None, prefix: str = "") -> None:
    """Every field of the default is there, no other is, and each has the default's type."""
    like = default.get_config() if like is None else like
    for name in config:
        if name not in like:
            raise ConfigError(f"config.{prefix}{name}: there is no such field; choose from {', '.join(sorted(like))}")
    for name in like:
        field = prefix + name
        if name not in config:
            raise ConfigError(f"config.{field} is missing; children of configs/default.py have every field")
        value, default_value = config[name], like[name]
        if isinstance(default_value, ConfigDict):
            if not isinstance(value, ConfigDict):
                raise ConfigError(f"config.{field} = {value!r}: has the fields {', '.join(sorted(default_value))}")
            _check_fields(value, default_value, field + ".")
        elif not (value is None and (default_value is None or field.startswith("model."))):
            _check_type(field, value, like.get_type(name))


def _check_type(field: str, value: Any, kind: type) -> None:
    kinds = {float: (float, int), tuple: (tuple, list)}.get(kind, (kind,))
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"config.{field} = {value!r}: must be of type {kind.__name__}")


def _inside(value: float, interval: str) -> bool:
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    above = value > low if interval[0] == "(" else value >= low
    below = value < high if interval[-1] == ")" else value <= high
    return above and below and math.isfinite(value)


def _check_lengths(config: ConfigDict) -> None:
    if (config.num_steps is None) == (config.num_epochs is None):
        raise ConfigError(
            f"config.num_steps = {config.num_steps}, config.num_epochs = {config.num_epochs}: give one of"
            " them and None for the other"
        )


def _check_mesh(config: ConfigDict, num_devices: int) -> None:
    model, fields = config.mesh.model, dict(leaves(config))
    # pmap has one axis; auto measures on one device, with every array whole.
    for field, value in (("parallel", "pmap"), ("jacobian.estimator.name", "auto")):
        if model > 1 and fields[field] == value:
            raise ConfigError(
                f"config.mesh.model = {model} has no meaning with config.{field} = {value!r}; choose mesh.model = 1, or"
                f" another {field}"
            )
    if num_devices % model:
        raise ConfigError(f"config.mesh.model = {model}: choose a divisor of the {num_devices} devices")


def _check_points(config: ConfigDict, num_devices: int) -> None:
    points, batch_size = config.jacobian.points, config.batch_size
    num_points = config.jacobian.batch_size or batch_size
    for field, size in (("batch_size", batch_size), ("jacobian.batch_size", num_points)):
        if size % num_devices:
            raise ConfigError(
                f"config.{field} = {size}: choose a multiple of the {num_devices} devices that share a batch"
            )
    if points == "batch" and batch_size % num_points:
        raise ConfigError(
            f"config.jacobian.batch_size = {num_points}: with config.jacobian.points = 'batch', choose a"
            f" divisor of config.batch_size = {batch_size}"
        )
    given = {name: value for name, value in config.jacobian.context.items() if value is not None}
    if points != "context" and given:
        name, value = next(iter(given.items()))
        raise ConfigError(
            f"config.jacobian.context.{name} = {value!r} has no meaning with config.jacobian.points ="
            f" {points!r}; choose points = 'context' or leave it None"
        )
    if points == "context" and "name" not in given:
        raise ConfigError("config.jacobian.context.name = None: points = 'context' needs a data set's name")


def _check_target(config: ConfigDict) -> None:
    target, penalty = config.jacobian.target, config.jacobian.penalty
    if target is None:
        return
    takers = [name for name, factory in PENALTIES.items() if "target" in options_of(factory)]
    if penalty not in takers:
        raise ConfigError(
            f"config.jacobian.target = {target!r} has no meaning with config.jacobian.penalty = {penalty!r}; choose"
            f" None, or a penalty from {', '.join(takers)}"
        )
    if not math.isfinite(target):
        raise ConfigError(f"config.jacobian.target = {target!r}: choose a finite number")


def _check_auto(config: ConfigDict) -> None:
    penalty = config.jacobian.penalty
    if config.jacobian.estimator.name == "auto" and penalty != "frobenius":
        raise ConfigError(
            f"config.jacobian.estimator.name = 'auto' has no meaning with config.jacobian.penalty = {penalty!r}, for"
            " which nothing is measured; choose another estimator, or penalty = 'frobenius'"
        )


def _check_options(config: ConfigDict, chooser: str, factory: Callable[..., Any], options: Collection[str]) -> None:
    """Refuse options that are given and that the chosen factory does not take."""
    group, choice = config[chooser.split(".")[0]], config[chooser.split(".")[0]][chooser.split(".")[1]]
    taken = options_of(factory)
    for option in sorted(options):
        if group[option] is not None and option not in taken:
            raise ConfigError(
                f"config.optimizer.{option} = {group[option]!r} has no meaning with config.{chooser} ="
                f" {choice!r}; its options are {', '.join(taken) or 'none'}"
            )


def _options_of_all(table: dict[str, Callable[..., Any]]) -> set[str]:
    return {option for factory in table.values() for option in options_of(factory)}
