"""The table at the end of a run, from its record."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

ROWS = (  # metric, label, format
    ("test/accuracy", "test accuracy", "{:.4f}"),
    ("test/nll", "test negative log-likelihood", "{:.4f} nats"),
    ("test/ece", "test calibration error (15 bins)", "{:.4f}"),
    ("test/squared_jacobian_norm", "test squared Jacobian norm, mean", "{:.4g}"),
    ("time/step_ms", "step, median", "{:.4g} ms"),
    ("time/penalty_share", "of it the penalty", "{:.0%}"),
    ("time/compile_s", "compilation", "{:.1f} s"),
    ("memory/compiled_gib", "memory of the compiled step", "{:.3g} GiB"),
    ("memory/device_peak_gib", "device memory, peak", "{:.3g} GiB"),
    ("memory/resident_gib", "resident memory of the process", "{:.3g} GiB"),
)


def summarize(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The run's last value of every metric, and the median of the step times."""
    summary: dict[str, float] = {}
    for record in records:
        summary |= {name: value for name, value in record.items() if name != "wall_time_s"}
    steps = [record["time/step_ms"] for record in records if "time/step_ms" in record]
    return summary | ({"time/step_ms": median(steps)} if steps else {})


def print_summary(summary: Mapping[str, float], workdir: Path, *, wandb: bool, console: Console) -> None:
    """Print the table and the commands to look further."""
    table = Table(title=f"{workdir} after {summary.get('step', 0):g} steps", title_justify="left", show_header=False)
    for name, label, form in ROWS:
        if name in summary:
            table.add_row(label, form.format(summary[name]))
    console.print(table)
    console.print(f"every record: {workdir}/metrics.jsonl", markup=False)
    if wandb:
        console.print(f"dashboard in the terminal: wandb leet {workdir}/wandb", markup=False)
        console.print(f"upload: wandb sync {workdir}/wandb/*run-*", markup=False)
    console.print(
        f"same run again: jacreg-train --config={workdir}/config.json --workdir={workdir}_again", markup=False
    )
