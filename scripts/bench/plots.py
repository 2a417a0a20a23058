"""Pictures of the benchmark: time and memory against the batch size, and time against error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from bench.cases import MODEL_CASES
from bench.pareto import family

MARKERS = "osD^vP*X"


def plot_against_size(rows: Sequence[Mapping[str, Any]], field: str, label: str, path: Path) -> bool:
    """One panel a model, one line a method; False, and no picture, where there is nothing to show."""
    rows = [row for row in rows if row.get(field) is not None]
    models = [model for model in MODEL_CASES if any(row["model"] == model for row in rows)]
    if not models:
        return False
    figure, axes = pyplot.subplots(1, len(models), figsize=(4.6 * len(models), 4.2), squeeze=False)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for axis, model in zip(axes[0], models, strict=True):
        for index, method in enumerate(methods):
            mine = [row for row in rows if (row["model"], row["method"]) == (model, method)]
            points = sorted((row["n"], row[field]) for row in mine)
            if points:
                _line(axis, points, method, index)
        axis.set(title=MODEL_CASES[model].title, xlabel="examples n", ylabel=label, xscale="log", yscale="log")
        sizes = sorted({row["n"] for row in rows})
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    handles = {name: handle for axis in axes[0] for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=1 + len(models))
    _save(figure, path)
    return True


def plot_pareto(rows: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Time ratio against the gradient's relative error for one model; False where there is nothing to show."""
    rows = [row for row in rows if row.get("time_ratio") is not None]
    points = [row for row in rows if row.get("relative_error")]
    if not points:
        return False
    figure, axis = pyplot.subplots(figsize=(6.4, 4.6))
    for index, name in enumerate(dict.fromkeys(family(row["method"]) for row in points)):
        mine = [row for row in points if family(row["method"]) == name]
        _line(axis, [(row["time_ratio"], row["relative_error"]) for row in mine], name, index)
        for row in mine:
            count = row["method"].rpartition(", ")[2]
            if count.isdigit():
                axis.annotate(count, (row["time_ratio"], row["relative_error"]), fontsize=8)
    for row in rows:
        if row["method"] == "layerwise":
            axis.axvline(row["time_ratio"], color="black", linestyle="--", label="layerwise (exact)")
    title = f"{MODEL_CASES[rows[0]['model']].title}, n = {rows[0]['n']}; numbers are probes"
    axis.set(title=title, xlabel="time / time of a plain gradient", ylabel="relative error of the gradient")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_yscale("log")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    _save(figure, path)
    return True


def draw(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """All pictures that the results have data for."""
    drawn = []
    for name, field, label in (
        ("time", "time_ratio", "time / time of a plain gradient"),
        ("memory", "memory_mib", "compiled memory, MiB"),
    ):
        path = folder / f"{name}.png"
        if plot_against_size(content["rows"], field, label, path):
            drawn.append(path)
    for model in dict.fromkeys(row["model"] for row in content["pareto"]):
        path = folder / f"pareto_{model}.png"
        if plot_pareto([row for row in content["pareto"] if row["model"] == model], path):
            drawn.append(path)
    return drawn


def _line(axis: Any, points: Sequence[tuple[float, float]], label: str, index: int) -> None:
    xs, ys = zip(*points, strict=True)
    axis.plot(xs, ys, marker=MARKERS[index % len(MARKERS)], color=f"C{index}", label=label)


def _save(figure: Any, path: Path) -> None:
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
