"""A sweep's worker process: takes trials from the queue and runs them, until none is left.

The launcher starts it and hands it the job on standard input (a database address can hold a password, so it
is on no command line). It ends when the launcher does.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.trial import Trial

from jacreg_train.experiments.sweep_file import Sweep, parse_sweep, to_flags
from jacreg_train.experiments.sweep_study import BEATS_PER_GRACE, SLOT, SweepStudy
from jacreg_train.experiments.sweep_trial import Outcome, run_trial

PROGRAM = ("-m", "jacreg_train.main")
_IDLE_S = 0.5


def main() -> None:
    job = json.load(sys.stdin)
    sweep = parse_sweep(job["content"], default_name=job["name"])
    study = SweepStudy(sweep, job["storage"], seed=job["seed"], grace_s=job["grace_s"])
    stop = _StopRequest(os.getppid())
    while not stop():
        study.recover()
        trial = study.claim()
        if trial is not None:
            _work(study, sweep, trial, job, stop)
        elif study.unfinished():  # others run; one of them may come back to the queue
            time.sleep(_IDLE_S)
        else:
            return


def trial_folder(sweep_folder: Path, slot: int) -> Path:
    """A trial's workdir, the same for every try of it."""
    return sweep_folder / "trials" / f"{slot:04d}"


def run_flags(sweep: Sweep, base_flags: list[str], slot: int, labels: Mapping[str, Any]) -> list[str]:
    """All flags of a trial but its workdir. In W&B a sweep's runs form a group unless flags say otherwise."""
    fields = {"wandb.group": sweep.name, "wandb.name": f"{sweep.name}-{slot:04d}"} | sweep.fields(labels)
    given = {flag.partition("=")[0] for flag in base_flags}
    return [*base_flags, *(flag for flag in to_flags(fields) if flag.partition("=")[0] not in given)]


def _work(study: SweepStudy, sweep: Sweep, trial: Trial, job: Mapping[str, Any], stop: "_StopRequest") -> None:
    slot = trial.user_attrs[SLOT]
    workdir = trial_folder(Path(job["folder"]), slot)
    flags = run_flags(sweep, job["flags"], slot, trial.params)
    print(f"trial {slot}: {' '.join(flags)}", flush=True)
    beaten = 0.0

    def on_tick() -> None:
        nonlocal beaten
        if time.monotonic() - beaten >= job["grace_s"] / BEATS_PER_GRACE:
            beaten = time.monotonic()
            study.beat(trial)

    def on_value(count: int, value: float) -> bool:
        trial.report(value, count)
        return sweep.hyperband is not None and trial.should_prune()

    outcome = run_trial(
        [sys.executable, *job["program"], *flags, f"--workdir={workdir}"],
        workdir,
        sweep.metric,
        on_value=on_value,
        on_tick=on_tick,
        stopped=stop,
    )
    _settle(study, trial, outcome, stopped=stop())
    print(f"trial {slot}: {outcome.kind} {outcome.reason}", flush=True)


def _settle(study: SweepStudy, trial: Trial, outcome: Outcome, *, stopped: bool) -> None:
    if outcome.kind == "done" and outcome.values[-1] == outcome.values[-1]:  # not nan
        study.finish(trial, outcome.values[-1])
    elif outcome.kind == "pruned":
        study.prune(trial)
    elif outcome.kind == "killed":
        study.put_back(trial._trial_id, reason=outcome.reason, killed=not stopped)
    else:
        study.fail(trial, outcome.reason or "the metric is nan")


class _StopRequest:
    """True once the worker was asked to stop or lost its launcher."""

    def __init__(self, launcher: int):
        self._launcher = launcher
        self._asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def __call__(self) -> bool:
        return self._asked or os.getppid() != self._launcher


if __name__ == "__main__":
    main()
