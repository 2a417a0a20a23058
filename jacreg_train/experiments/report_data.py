"""What a report is made from: runs, sweeps and benchmarks, read from local records."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from jacreg_train.telemetry import read_config, read_records, read_run_record
from jacreg_train.telemetry.writers import METRICS_FILE

SWEEP_FILE = "sweep.json"
MAX_POINTS = 1000


class ReportError(ValueError):
    """Something that no report can be made from: one line."""


@dataclass(frozen=True)
class RunData:
    """One run.

    Attributes:
        name: for people; unique in a report.
        records: one dict a step, numbers only; not-a-numbers and infinities are None.
        config: the resolved config, nested.
        record: `run.json`.
    """

    name: str
    path: Path
    records: tuple[Mapping[str, Any], ...]
    config: Mapping[str, Any]
    record: Mapping[str, Any]

    def curve(self, metric: str) -> tuple[list[int], list[float | None]]:
        """Steps and values of a metric, thinned evenly to `MAX_POINTS`, the last one kept."""
        points = [(record["step"], record[metric]) for record in self.records if metric in record]
        if len(points) > MAX_POINTS:
            last = len(points) - 1
            points = [points[round(index * last / (MAX_POINTS - 1))] for index in range(MAX_POINTS)]
        return [step for step, _ in points], [value for _, value in points]

    def last(self, metric: str) -> float | None:
        return next((each[metric] for each in reversed(self.records) if each.get(metric) is not None), None)

    def best(self, metric: str) -> float | None:
        return max((each[metric] for each in self.records if each.get(metric) is not None), default=None)

    def median(self, metric: str) -> float | None:
        values = [each[metric] for each in self.records if each.get(metric) is not None]
        return median(values) if values else None

    def thinned(self) -> bool:
        return len(self.records) > MAX_POINTS


@dataclass(frozen=True)
class SweepData:
    """One sweep: the content of `sweep.json`, and trial number -> name of its run in the report."""

    name: str
    content: Mapping[str, Any]
    run_names: Mapping[int, str]


@dataclass(frozen=True)
class BenchmarkData:
    """One benchmark: the JSON file that `scripts/benchmark.py` writes."""

    name: str
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Contents:
    """All that one report shows."""

    runs: tuple[RunData, ...]
    sweeps: tuple[SweepData, ...]
    benchmarks: tuple[BenchmarkData, ...]


def load(paths: Iterable[str | Path]) -> Contents:
    """Read workdirs of runs, folders of sweeps, folders that hold such, and benchmark files.

    Raises:
        ReportError: a path that is none of these, or a damaged file.
    """
    runs: dict[Path, RunData] = {}
    sweeps: dict[Path, Mapping[str, Any]] = {}
    benchmarks = []
    for path in map(Path, paths):
        if path.is_file():
            benchmarks.append(BenchmarkData(path.stem, _read_benchmark(path)))
            continue
        found_sweeps = sorted(each.parent for each in [*path.glob(SWEEP_FILE), *path.glob(f"*/{SWEEP_FILE}")])
        found_runs = [path, *sorted(path.glob("*")), *sorted(path.glob("trials/*")), *sorted(path.glob("*/trials/*"))]
        found_runs = [each for each in found_runs if (each / METRICS_FILE).is_file()]
        if not found_sweeps and not found_runs:
            raise ReportError(f"{path}: no run ({METRICS_FILE}), no sweep ({SWEEP_FILE}), no benchmark (a JSON file)")
        sweeps |= {each: _read_sweep(each / SWEEP_FILE) for each in found_sweeps}
        runs |= {each: _read_run(each) for each in found_runs}
    for path, content in sweeps.items():
        for trial in content["trials"]:
            folder = path / trial["workdir"]
            if folder in runs:
                runs[folder] = replace(runs[folder], name=f"{content['name']}/{folder.name}")
    named = _with_unique_names(list(runs.values()))
    return Contents(named, tuple(_sweep(path, each, named) for path, each in sweeps.items()), tuple(benchmarks))


def differing_fields(runs: Sequence[RunData]) -> dict[str, list[Any]]:
    """Dotted config field -> its value in every run, for the fields that are not the same in all, W&B's aside."""
    flat = [_flat(run.config) for run in runs]
    fields = sorted({field for each in flat for field in each})
    values = {field: [each.get(field) for each in flat] for field in fields}
    return {
        field: each
        for field, each in values.items()
        if not field.startswith("wandb.") and any(value != each[0] for value in each)
    }


def _read_run(path: Path) -> RunData:
    try:
        records = read_records(path)
    except ValueError as error:
        raise ReportError(str(error)) from None
    clean = tuple({name: _number(value) for name, value in record.items() if _is_number(value)} for record in records)
    return RunData(path.resolve().name, path, clean, read_config(path), read_run_record(path))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float) -> float | int | None:
    return value if math.isfinite(value) else None


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{path}: not JSON ({' '.join(str(error).split())[:100]})") from None
    if not isinstance(content, dict):
        raise ReportError(f"{path}: not a JSON object")
    return content


def _read_sweep(path: Path) -> Mapping[str, Any]:
    content = _read_json(path)
    for field, kind in {"name": str, "metric": dict, "parameters": list, "trials": list}.items():
        if not isinstance(content.get(field), kind):
            raise ReportError(f"{path}: no sweep's summary ({field} is missing or of another kind)")
    return content


def _read_benchmark(path: Path) -> Mapping[str, Any]:
    content = _read_json(path)
    rows = content.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ReportError(f"{path}: no benchmark (it has no list `rows`)")
    return content


def _sweep(path: Path, content: Mapping[str, Any], runs: Sequence[RunData]) -> SweepData:
    names = {run.path.resolve(): run.name for run in runs}
    folders = {each["trial"]: (path / each["workdir"]).resolve() for each in content["trials"]}
    return SweepData(
        content["name"], content, {trial: names[folder] for trial, folder in folders.items() if folder in names}
    )


def _with_unique_names(runs: list[RunData]) -> tuple[RunData, ...]:
    """Folder names; where two are the same, with as many of their parents as it takes."""
    depth = 1
    names = [run.name for run in runs]
    while len(set(names)) < len(names):
        depth += 1
        twice = {name for name in names if names.count(name) > 1}
        longer = ["/".join(run.path.resolve().parts[-depth:]) for run in runs]
        names = [long if name in twice else name for name, long in zip(names, longer, strict=True)]
    return tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
