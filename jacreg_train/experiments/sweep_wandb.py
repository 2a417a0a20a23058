"""The same sweep file with W&B handing out the trials: register it, start an agent, run what the agent gives.

An agent starts this module for every trial, with the trial's parameters in a JSON file; the module becomes an
ordinary run in a workdir of its own, which W&B knows by the agent's environment variables.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jacreg_train.experiments.sweep_file import Sweep, SweepError, to_flags
from jacreg_train.experiments.sweep_worker import PROGRAM
from jacreg_train.telemetry.writers import replace_file

JOB_FILE = "wandb_job.json"


def run_agent(sweep: Sweep, folder: Path, *, base_flags: Sequence[str] = (), num_trials: int | None = None) -> None:
    """Register a sweep with W&B (once a folder) and run an agent until the sweep ends.

    Further agents, on any machine that sees the folder, are started by the same command.

    Args:
        sweep: the sweep.
        folder: gets `trials/`, and the sweep's id.
        base_flags: `--config...` flags of every trial.
        num_trials: how many this agent runs; None: until the sweep ends.

    Raises:
        SweepError: nobody is logged in, or the agent failed.
    """
    import wandb

    if not wandb.login(prompt=False, verify=False):
        raise SweepError("--engine=wandb needs a login: run `wandb login` (or use the default engine)")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOB_FILE
    if path.exists():
        job = json.loads(path.read_text(encoding="utf-8"))
    else:
        project = sweep.content.get("project", "jacreg")
        job = {"flags": list(base_flags), "project": project}
        job["id"] = wandb.sweep(registration(sweep, folder), project=project)
        replace_file(path, json.dumps(job, indent=1) + "\n")
    count = [] if num_trials is None else ["--count", str(num_trials)]
    command = [sys.executable, "-m", "wandb", "agent", "--project", job["project"], *count, job["id"]]
    if code := subprocess.run(command).returncode:
        raise SweepError(f"the W&B agent ended with exit code {code}")


def registration(sweep: Sweep, folder: Path) -> dict[str, Any]:
    """What W&B gets: the file as it is, with a command that comes back to this module."""
    command = [sys.executable, "-m", "jacreg_train.experiments.sweep_wandb", str(folder.absolute())]
    return {**sweep.content, "name": sweep.name, "command": [*command, "${args_json_file}"]}


def run_command(folder: Path, parameters: Mapping[str, Any], run_id: str) -> list[str]:
    """The command line of the trial with these (nested) parameters."""
    job = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    flags = [*job["flags"], *to_flags(_flat(parameters)), "--config.wandb.mode=online"]
    return [sys.executable, *PROGRAM, *flags, f"--workdir={folder / 'trials' / run_id}"]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = prefix + name
        flat |= _flat(value, f"{path}.") if isinstance(value, Mapping) else {path.removeprefix("config."): value}
    return flat


def main(argv: Sequence[str]) -> None:
    """Become the run: `python -m jacreg_train.experiments.sweep_wandb FOLDER PARAMETERS.json`."""
    folder, parameters = Path(argv[1]), json.loads(Path(argv[2]).read_text(encoding="utf-8"))
    command = run_command(folder, parameters, os.environ["WANDB_RUN_ID"])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv)
