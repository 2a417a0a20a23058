"""The benchmark's results as Markdown tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cases import MODEL_CASES

BEGIN, END = "<!-- benchmark -->", "<!-- /benchmark -->"
MISSING = "-"
HOW_TO_READ = (
    "Ratios are to the gradient of the plain loss on the same model and batch, from calls in turns in one process: "
    "the median, with the lowest and the highest of the rounds. Memory is the compiler's figure (arguments + outputs + "
    "temporaries - reused). Compile time is that of tracing, lowering and compiling. Multiply-adds are those of matrix "
    "products and convolutions, without padding, loops as often as they run. The error is that of one gradient, "
    "relative to the exact one, root mean square over the calls."
)


def markdown(content: Mapping[str, Any]) -> str:
    """Both tables, and on what they were measured."""
    parts = [_measured_on(content)]
    if content.get("targets"):
        parts += ["Ratios beside their targets:", targets_table(content["targets"])]
    if content.get("rows"):
        parts += ["Ways to the gradient of the squared norm:", methods_table(content["rows"]), HOW_TO_READ]
    return "\n\n".join(parts) + "\n"


def methods_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The main table, by model, batch size and method."""
    models = list(MODEL_CASES)
    ordered = sorted(rows, key=lambda row: (models.index(row["model"]), row["n"]))
    headings = (
        *("model", "n", "method", "time ratio", "memory MiB", "memory ratio"),
        *("compile s", "compile ratio", "multiply-adds ratio", "error of the gradient"),
    )
    return _table(headings, (_method_cells(row) for row in ordered), left=(0, 2))


def targets_table(targets: Sequence[Mapping[str, Any]]) -> str:
    """The second table: promised ratios first as measured, and the ones that only inform last."""
    ordered = sorted(targets, key=lambda target: target["target"] is None)
    headings = ("what", "measured", "at most", "reached", "floor")
    return _table(headings, map(_target_cells, ordered), left=(0,))


def shortfalls(targets: Iterable[Mapping[str, Any]]) -> list[str]:
    """What misses its target, in words."""
    return [
        f"{each['name']}: {_number(each['ratio'])}, target {_number(each['target'])}"
        for each in targets
        if each["target"] is not None and each["ratio"] > each["target"]
    ]


def write_between_markers(path: Path, text: str) -> None:
    """Put the text between the benchmark's markers of a file.

    Raises:
        ValueError: the file does not have both markers, in order, once.
    """
    content = path.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(content)) != 1:
        raise ValueError(f"{path}: needs the lines {BEGIN} and {END} once, in this order")
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}{END}", content), encoding="utf-8")


def _measured_on(content: Mapping[str, Any]) -> str:
    device, versions = content.get("device"), content.get("versions")
    if not isinstance(device, Mapping) or not isinstance(versions, Mapping):
        return f"Measured on {json.dumps(device)}."
    cores = f", {device['cpu_cores']} CPU cores" if device.get("platform") == "cpu" else ""
    return f"Measured on {device.get('kind')}{cores}, with jax {versions.get('jax')}."


def _method_cells(row: Mapping[str, Any]) -> list[str]:
    compiled = [_number(row.get(name)) for name in ("memory_mib", "memory_ratio", "compile_s", "compile_ratio")]
    if row.get("memory_mib") is None and row.get("jacobian_mib"):
        compiled[0] = f"over {_number(row['jacobian_mib'])}"
    error = "the exact one" if row.get("is_reference") else _number(row.get("relative_error"))
    rest = [*compiled, _number(row.get("flop_ratio")), error]
    return [MODEL_CASES[row["model"]].title, str(row["n"]), row["method"], _time(row), *rest]


def _time(row: Mapping[str, Any]) -> str:
    if not row.get("fits", True):
        return "does not fit"
    if row.get("time_ratio") is None:
        return f"not run (about {row['expected_s']:.0f} s a call)" if row.get("expected_s") else MISSING
    return _with_spread(row, "time_ratio")


def _target_cells(row: Mapping[str, Any]) -> list[str]:
    reached = MISSING if row["target"] is None else "yes" if row["ratio"] <= row["target"] else "**no**"
    return [row["name"], _with_spread(row, "ratio"), _number(row["target"]), reached, _number(row.get("floor"))]


def _with_spread(row: Mapping[str, Any], name: str) -> str:
    if row.get("rounds", 0) < 2:
        return _number(row[name])
    return f"{_number(row[name])} ({_number(row['time_low'])} to {_number(row['time_high'])})"


def _number(value: Any) -> str:
    """Three digits, without an exponent where that reads well."""
    if value is None:
        return MISSING
    if value == 0 or 1e-3 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int]) -> str:
    rule = [":--" if column in left else "--:" for column in range(len(headings))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows))
