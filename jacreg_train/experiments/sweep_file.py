"""Sweep files: W&B's sweep schema, read and checked, as plain data.

Supported are `name`, `description`, `method` (grid, random, bayes), `metric` (name, goal), `run_cap`, nested
`parameters`, `early_terminate` (hyperband), and `command`, of which the `--config...` flags count: every
trial gets them. Parameters are the config's fields, nested or dotted, with or without a leading `config.`.
"""

import difflib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jacreg_train.experiments.yaml_file import read_yaml

METHODS = ("grid", "random", "bayes")
GOALS = ("maximize", "minimize")
# distribution -> its keys besides `distribution`
DISTRIBUTIONS = {
    "constant": ("value",),
    "categorical": ("values",),
    "int_uniform": ("min", "max"),
    "uniform": ("min", "max"),
    "q_uniform": ("min", "max", "q"),
    "log_uniform": ("min", "max"),
    "log_uniform_values": ("min", "max"),
}
_KEYS = (
    *("name", "description", "method", "metric", "run_cap", "parameters", "early_terminate"),
    *("command", "program", "project", "entity"),
)
_MAX_GRID = 10_000


class SweepError(ValueError):
    """A mistake in a sweep or its file: one line with field, value and choices."""

    def __init__(self, message: str):
        # Names come from the file: whatever they hold, the message stays one line.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


@dataclass(frozen=True)
class Parameter:
    """A config field that varies.

    Attributes:
        path: dotted, without `config.`.
        distribution: a key of `DISTRIBUTIONS`; never "constant".
        choices: label -> value, for categorical. A label is the value where that is a number, a string, a
            boolean or None; of a mapping its values, of a list its JSON text.
        low, high: bounds of the others, both included, never logarithms.
        step: spacing of q_uniform.
    """

    path: str
    distribution: str
    choices: Mapping[Any, Any] | None = None
    low: float = 0.0
    high: float = 0.0
    step: float | None = None

    def value(self, label: Any) -> Any:
        """The config's value for what a trial's parameters say."""
        return label if self.choices is None else self.choices[label]

    def labels(self) -> list[Any]:
        """All of them, for a grid.

        Raises:
            SweepError: a continuous parameter.
        """
        if self.choices is not None:
            return list(self.choices)
        if self.distribution == "int_uniform":
            return list(range(int(self.low), int(self.high) + 1))
        if self.step is not None:
            count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            return [self.low + index * self.step for index in range(count)]
        raise SweepError(
            f"parameters.{self.path}: distribution {self.distribution!r} has no grid;"
            " give `values`, or choose method random or bayes"
        )

    def extremes(self) -> list[Any]:
        """Values that, checked one by one, check the parameter: every choice, or both ends."""
        if self.choices is not None:
            return list(self.choices)
        return [int(self.low), int(self.high)] if self.distribution == "int_uniform" else [self.low, self.high]


@dataclass(frozen=True)
class Hyperband:
    """Stop a trial at record `min_iter * eta**k` of the metric unless it is among the best 1/eta there."""

    min_iter: int
    eta: int


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read.

    Attributes:
        name: the file's `name`, else its stem.
        constants: dotted path -> value, the same in every trial.
        flags: `--config...` flags of the file's `command`.
        content: the file as it was, for W&B and for comparisons.
    """

    name: str
    method: str
    metric: str
    goal: str
    parameters: tuple[Parameter, ...]
    constants: Mapping[str, Any]
    run_cap: int | None
    hyperband: Hyperband | None
    flags: tuple[str, ...]
    content: Mapping[str, Any]

    def grid(self) -> Iterator[dict[str, Any]]:
        """Every combination: dotted path -> label, the last parameter varying fastest."""
        names = [parameter.path for parameter in self.parameters]
        for labels in itertools.product(*(parameter.labels() for parameter in self.parameters)):
            yield dict(zip(names, labels, strict=True))

    def fields(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Dotted path -> value of every field a trial sets, the constants included."""
        fields = dict(self.constants)
        for parameter in self.parameters:
            if parameter.path in labels:
                fields |= _merged_paths(parameter.path, parameter.value(labels[parameter.path]))
        return fields


def read_sweep(path: str | Path) -> Sweep:
    """Read and check a sweep file (YAML, or JSON).

    Raises:
        SweepError: it can't be read, or something in it is not as the schema says. Whether the parameters fit
            the config is another question, see `sweep_check`.
    """
    path = Path(path)
    try:
        content = read_yaml(path)
    except OSError as error:
        raise SweepError(f"--sweep={path}: {error.strerror or error}") from None
    except ValueError as error:
        raise SweepError(f"{path}: {error}") from None
    try:
        return parse_sweep(content, default_name=path.stem)
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from None


def parse_sweep(content: Any, default_name: str = "sweep") -> Sweep:
    """Check the content of a sweep file; see `read_sweep`."""
    content = _mapping(content, "the file")
    _known(content, _KEYS, "")
    method = _choice(content.get("method"), METHODS, "method")
    metric = _mapping(content.get("metric"), "metric")
    _known(metric, ("name", "goal", "target"), "metric.")
    if not isinstance(metric.get("name"), str):
        raise SweepError(f"metric.name = {metric.get('name')!r}: must be a metric's name, as test/accuracy")
    fields = dict(_parameters(_mapping(content.get("parameters"), "parameters"), ""))
    if not fields:
        raise SweepError("parameters: none given")
    _refuse_overlaps(fields)
    sweep = Sweep(
        name=_name(content.get("name"), default_name),
        method=method,
        metric=metric["name"],
        goal=_choice(metric.get("goal", "minimize"), GOALS, "metric.goal"),
        parameters=tuple(field for field in fields.values() if isinstance(field, Parameter)),
        constants={
            name: value
            for path, field in fields.items()
            if not isinstance(field, Parameter)
            for name, value in _merged_paths(path, field[0]).items()
        },
        run_cap=_positive(content["run_cap"], "run_cap") if content.get("run_cap") is not None else None,
        hyperband=_hyperband(content.get("early_terminate")),
        flags=_flags(content.get("command", ())),
        content=content,
    )
    if method == "grid":
        size = math.prod(len(parameter.labels()) for parameter in sweep.parameters)
        if size > _MAX_GRID and sweep.run_cap is None:
            raise SweepError(f"the grid has {size} points: give run_cap, or fewer values")
    return sweep


def to_flags(fields: Mapping[str, Any]) -> list[str]:
    """`--config.PATH=VALUE` for every field, as one would type them."""
    return [f"--config.{path}={_flag_text(value)}" for path, value in fields.items()]


def _parameters(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted path -> `Parameter`, or a one-tuple that holds a constant."""
    for name, entry in tree.items():
        if not isinstance(name, str):
            raise SweepError(f"parameters.{prefix}{name}: a name must be a string")
        path = prefix + (name.removeprefix("config.") if not prefix else name)
        if name == "config" and not prefix and isinstance(entry, Mapping) and "parameters" in entry:
            yield from _parameters(_mapping(entry["parameters"], f"parameters.{path}.parameters"), "")
            continue
        entry = _mapping(entry, f"parameters.{path}")
        if "parameters" in entry:
            _known(entry, ("parameters",), f"parameters.{path}.")
            yield from _parameters(_mapping(entry["parameters"], f"parameters.{path}.parameters"), f"{path}.")
        else:
            yield path, _parameter(path, entry)


def _parameter(path: str, entry: Mapping[str, Any]) -> Any:
    field = f"parameters.{path}"
    distribution = entry.get("distribution", _implied_distribution(field, entry))
    _choice(distribution, DISTRIBUTIONS, f"{field}.distribution")
    keys = DISTRIBUTIONS[distribution]
    _known(entry, ("distribution", *keys), f"{field}.")
    for key in keys:
        if key not in entry:
            raise SweepError(f"{field}: distribution {distribution!r} needs {' and '.join(keys)}")
    if distribution == "constant":
        return (entry["value"],)
    if distribution == "categorical":
        return Parameter(path, distribution, choices=_choices(field, entry["values"]))
    for key in keys:
        if isinstance(entry[key], bool) or not isinstance(entry[key], int | float) or not math.isfinite(entry[key]):
            raise SweepError(f"{field}.{key} = {entry[key]!r}: must be a finite number")
    low, high, step = entry["min"], entry["max"], entry.get("q")
    if distribution == "int_uniform" and not (isinstance(low, int) and isinstance(high, int)):
        raise SweepError(f"{field}: int_uniform needs whole numbers, got min = {low!r}, max = {high!r}")
    if distribution == "log_uniform":  # W&B's bounds are exponents there
        low, high = _exp(f"{field}.min", low), _exp(f"{field}.max", high)
    if distribution == "log_uniform_values" and low <= 0:
        raise SweepError(f"{field}.min = {low!r}: log_uniform_values needs a positive number")
    if step is not None and step <= 0:
        raise SweepError(f"{field}.q = {step!r}: must be positive")
    if not low < high:
        raise SweepError(f"{field}: min = {entry['min']!r} must be below max = {entry['max']!r}")
    return Parameter(path, distribution, low=low, high=high, step=step)


def _implied_distribution(field: str, entry: Mapping[str, Any]) -> str:
    if "value" in entry:
        return "constant"
    if "values" in entry:
        return "categorical"
    if "min" in entry and "max" in entry:
        whole = isinstance(entry["min"], int) and isinstance(entry["max"], int)
        return "int_uniform" if whole else "uniform"
    raise SweepError(f"{field}: give value, values, min and max, or nested parameters")


def _choices(field: str, values: Any) -> dict[Any, Any]:
    if not isinstance(values, list) or not values:
        raise SweepError(f"{field}.values = {values!r}: must be a list of at least one value")
    choices: dict[Any, Any] = {}
    for value in values:
        label = _label(value)
        if label in choices:
            raise SweepError(f"{field}.values: {value!r} is given twice (or equals another)")
        choices[label] = value
    return choices


def _label(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(str(leaf) for leaf in _merged_paths("", value).values())
    return json.dumps(value, default=str)


def _hyperband(entry: Any) -> Hyperband | None:
    if entry is None:
        return None
    entry = _mapping(entry, "early_terminate")
    _known(entry, ("type", "min_iter", "max_iter", "s", "eta", "strict"), "early_terminate.")
    _choice(entry.get("type"), ("hyperband",), "early_terminate.type")
    if entry.get("strict"):
        raise SweepError("early_terminate.strict = true: not supported; leave it out")
    eta = _positive(entry.get("eta", 3), "early_terminate.eta")
    if eta < 2:
        raise SweepError(f"early_terminate.eta = {eta}: must be at least 2")
    if ("min_iter" in entry) == ("max_iter" in entry):
        raise SweepError("early_terminate: give either min_iter, or max_iter with s")
    if "min_iter" in entry:
        return Hyperband(_positive(entry["min_iter"], "early_terminate.min_iter"), eta)
    brackets = _positive(entry.get("s"), "early_terminate.s")
    longest = _positive(entry["max_iter"], "early_terminate.max_iter")
    return Hyperband(max(1, round(longest / float(eta) ** min(brackets, 60))), eta)


def _flags(command: Any) -> tuple[str, ...]:
    if not isinstance(command, Sequence) or isinstance(command, str):
        raise SweepError(f"command = {command!r}: must be a list of strings")
    return tuple(word for word in map(str, command) if word.startswith("--config"))


def _refuse_overlaps(fields: Iterable[str]) -> None:
    paths = sorted(fields)
    for shorter, longer in itertools.combinations(paths, 2):
        if longer.startswith(f"{shorter}."):
            raise SweepError(f"parameters.{shorter} and parameters.{longer} set the same field")


def _merged_paths(path: str, value: Any) -> dict[str, Any]:
    """A mapping as value merges into the config field by field."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {name: leaf for key, each in value.items() for name, leaf in _merged_paths(f"{path}.{key}", each).items()}


def _flag_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"({', '.join(map(repr, value))}{',' if len(value) == 1 else ''})"
    return repr(value) if isinstance(value, float) else str(value)


def _exp(field: str, exponent: float) -> float:
    if abs(exponent) > 700:
        raise SweepError(
            f"{field} = {exponent!r}: log_uniform takes exponents (of e); for values use log_uniform_values"
        )
    return math.exp(exponent)


def _name(value: Any, default: str) -> str:
    value = default if value is None else value
    if not isinstance(value, str) or not value or not value.isprintable() or "/" in value or value.startswith("."):
        raise SweepError(f"name = {value!r}: must be a printable string without a slash")
    return value


def _positive(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SweepError(f"{field} = {value!r}: must be a whole number of at least 1")
    return value


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SweepError(f"{field}: must be a mapping, not {value!r:.80}")
    return value


def _choice(value: Any, choices: Iterable[str], field: str) -> Any:
    if value not in choices or not isinstance(value, str):
        raise SweepError(f"{field} = {value!r}: must be one of {', '.join(choices)}")
    return value


def _known(entry: Mapping[Any, Any], keys: Sequence[str], prefix: str) -> None:
    for key in entry:
        if key not in keys:
            close = difflib.get_close_matches(str(key), keys, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SweepError(f"{prefix}{key}: unknown, the choices are {', '.join(keys)}{hint}")
