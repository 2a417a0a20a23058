"""A sweep's results: as plain data in `sweep.json`, and as the tables at its end."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jacreg_train.experiments.sweep_study import KILLS, REASON, SLOT, SweepStudy
from jacreg_train.experiments.sweep_worker import run_flags, trial_folder
from jacreg_train.telemetry import redact
from jacreg_train.telemetry.writers import replace_file

SUMMARY_FILE = "sweep.json"
STATES = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


def summarize_sweep(study: SweepStudy, folder: Path, base_flags: Sequence[str]) -> dict[str, Any]:
    """The sweep's results as plain data: what `sweep.json` holds and the report shows."""
    sweep = study.sweep
    trials = [describe_trial(study, trial, folder, base_flags) for trial in study.trials()]
    done = [trial for trial in trials if trial["state"] == "done"]
    best = sorted(done, key=lambda trial: trial["value"], reverse=sweep.goal == "maximize")
    return {
        "name": sweep.name,
        "method": sweep.method,
        "metric": {"name": sweep.metric, "goal": sweep.goal},
        "parameters": [parameter.path for parameter in sweep.parameters],
        "trials": trials,
        "best": [trial["trial"] for trial in best],
        "importances": study.importances(),
        "content": redact(sweep.content),
    }


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write `sweep.json`."""
    replace_file(folder / SUMMARY_FILE, json.dumps(summary, indent=1, default=str) + "\n")


def describe_trial(study: SweepStudy, trial: FrozenTrial, folder: Path, base_flags: Sequence[str]) -> dict[str, Any]:
    """One trial as plain data."""
    slot = trial.user_attrs[SLOT]
    values = trial.intermediate_values
    flags = run_flags(study.sweep, list(base_flags), slot, trial.params)
    return {
        "trial": slot,
        "state": STATES[trial.state if trial.params else TrialState.WAITING],  # just taken: not sampled yet
        "parameters": dict(trial.params),
        "value": trial.value if trial.state == TrialState.COMPLETE else None,
        "last_value": _finite(values[max(values)]) if values else None,
        "seconds": trial.duration.total_seconds() if trial.duration else None,
        "workdir": str(trial_folder(Path(), slot)),  # relative, so that the folder can move
        "kills": trial.user_attrs.get(KILLS, 0),
        "reason": trial.user_attrs.get(REASON, "") if trial.state == TrialState.FAIL else "",
        "command": shlex.join(redact(["jacreg-train", *flags, f"--workdir={folder / 'again'}"])),
    }


def print_sweep_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Best trials, importance of the parameters, and the command that reproduces the best."""
    trials = {trial["trial"]: trial for trial in summary["trials"]}
    metric = summary["metric"]
    table = Table(
        title=f"best trials of {summary['name']} by {metric['name']} ({metric['goal']})", title_justify="left"
    )
    for heading in ("trial", *summary["parameters"], metric["name"]):
        table.add_column(heading)
    for number in summary["best"][:5]:
        trial = trials[number]
        cells = [cell(trial["parameters"].get(name)) for name in summary["parameters"]]
        table.add_row(str(number), *map(Text, cells), cell(trial["value"]))
    console.print(table)
    counts = {state: sum(trial["state"] == state for trial in trials.values()) for state in STATES.values()}
    console.print(", ".join(f"{count} {state}" for state, count in counts.items() if count))
    for trial in trials.values():
        if trial["state"] == "failed":
            console.print(f"trial {trial['trial']} failed: {trial['reason']}", markup=False, soft_wrap=True)
    if summary["importances"]:
        shares = "  ".join(f"{name} {share:.0%}" for name, share in summary["importances"].items())
        console.print(f"importance of the parameters: {shares}", markup=False, soft_wrap=True)
    if summary["best"]:
        console.print("the best trial again:", soft_wrap=True)
        console.print(f"  {trials[summary['best'][0]]['command']}", markup=False, soft_wrap=True)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
