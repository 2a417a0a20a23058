"""Does a sweep fit the config and the metrics? Asked before the first trial, by the trials' own parser."""

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from jacreg_train import jacobian, main
from jacreg_train.experiments.sweep_file import Sweep, SweepError, to_flags
from jacreg_train.telemetry import METRICS
from jacreg_train.training.validation import check_overrides, validate

# What a command line can be refused with.
_REFUSALS = (flags.Error, ValueError, TypeError, AttributeError, KeyError, OSError)
_MAX_COMBINATIONS = 200


def check_sweep(sweep: Sweep, base_flags: Sequence[str]) -> None:
    """Refuse a sweep whose trials couldn't start.

    Every field is set to each of its choices (or both ends of its range) on top of the base config, and of
    a grid its combinations too (the first 200), by the parser and the checks of `jacreg_train.main`.

    Args:
        sweep: the sweep.
        base_flags: `--config...` flags that every trial gets.

    Raises:
        SweepError: unknown metric or field, wrong type, a value the config refuses; one line.
    """
    if sweep.metric not in METRICS:
        close = difflib.get_close_matches(sweep.metric, METRICS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SweepError(f"metric.name = {sweep.metric!r}: must be one of {', '.join(METRICS)}{hint}")
    _check_fixed_twice(sweep, base_flags)
    _check(base_flags, {}, "")
    _check(base_flags, sweep.constants, "parameters: ", validated=False)
    for parameter in sweep.parameters:
        for label in parameter.extremes():
            fields = dict(sweep.constants) | sweep.fields({parameter.path: label})
            _check(base_flags, fields, f"parameters.{parameter.path}: ", validated=False)
    combinations = sweep.grid() if sweep.method == "grid" else _corners(sweep)
    for labels in itertools.islice(combinations, _MAX_COMBINATIONS):
        said = ", ".join(f"{path} = {label}" for path, label in labels.items())
        _check(base_flags, sweep.fields(labels), f"the trial with {said}: ")


def _corners(sweep: Sweep) -> Iterable[Mapping[str, Any]]:
    """Each parameter through its extremes, the others at their first."""
    first = {parameter.path: parameter.extremes()[0] for parameter in sweep.parameters}
    yield first
    for parameter in sweep.parameters:
        for label in parameter.extremes()[1:]:
            yield first | {parameter.path: label}


def _check(base_flags: Sequence[str], fields: Mapping[str, Any], where: str, *, validated: bool = True) -> None:
    """Names and types always; with `validated` also what the values mean together."""
    argv = ["jacreg-train", *base_flags, *to_flags(fields)]
    try:
        config, overridden, _ = main.parse(argv)
        if validated:
            check_overrides(config, overridden)
            validate(config, num_devices=1)
            estimator = {name: value for name, value in config.jacobian.estimator.items() if value is not None}
            jacobian.make_estimator(estimator.pop("name"), wrt=config.jacobian.wrt, **estimator)
    except _REFUSALS as error:
        refusal = main.misnamed_field(argv) or error
        raise SweepError(f"{where}{' '.join(str(refusal).split())}") from None


def _check_fixed_twice(sweep: Sweep, base_flags: Sequence[str]) -> None:
    fixed = {flag.partition("=")[0].removeprefix("--config.") for flag in base_flags}
    for path in [*sweep.constants, *(parameter.path for parameter in sweep.parameters)]:
        if path in fixed:
            raise SweepError(f"parameters.{path}: also given as the flag --config.{path}; leave one out")
