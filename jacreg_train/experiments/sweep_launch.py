"""The sweep's launcher: fills the queue, keeps workers alive, shows a live table, writes the summary."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jacreg_train.experiments.sweep_file import Sweep, SweepError
from jacreg_train.experiments.sweep_study import GRACE_S, SweepStudy
from jacreg_train.experiments.sweep_summary import (
    cell,
    describe_trial,
    print_sweep_summary,
    summarize_sweep,
    write_summary,
)
from jacreg_train.experiments.sweep_worker import PROGRAM
from jacreg_train.telemetry.progress import format_duration
from jacreg_train.telemetry.writers import METRICS_FILE

_STYLES = {"running": "bold", "done": "green", "pruned": "yellow", "failed": "red"}
_MAX_RESTARTS = 20
_TICK_S = 1.0


def launch(
    sweep: Sweep,
    folder: Path,
    *,
    base_flags: Sequence[str] = (),
    num_workers: int = 2,
    storage: str | None = None,
    num_trials: int | None = None,
    seed: int = 0,
    grace_s: int = GRACE_S,
    program: Sequence[str] = PROGRAM,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run a sweep to its end, from wherever an earlier launch left it.

    Args:
        sweep: one that `sweep_check.check_sweep` accepts.
        folder: the sweep's; it gets `trials/`, `sweep.db` (by default), `sweep.json` and the workers' logs.
        base_flags: `--config...` flags of every trial.
        num_workers: processes; each runs one trial at a time.
        storage: database address, for many machines; None: sqlite in the folder.
        num_trials: overrides the file's `run_cap`.
        seed: of the samplers.
        grace_s: after how many seconds of silence another machine's worker counts as dead.
        program: what Python runs as a trial, before the flags.
        console: where the table goes.

    Returns:
        The summary, as in `sweep.json`.

    Raises:
        SweepError: another launcher runs in the folder; the database holds another sweep; workers keep dying.
        KeyboardInterrupt: after the runs were stopped in order.
    """
    console = console or Console(highlight=False)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        address = storage or f"sqlite:///{folder.absolute()}/sweep.db"
        study = SweepStudy(sweep, address, seed=seed, grace_s=grace_s)
        study.recover(alone=storage is None)
        study.fill(num_trials or sweep.run_cap)
        job: dict[str, Any] = {
            "content": sweep.content,
            "name": sweep.name,
            "storage": address,
            "folder": str(folder),
        }
        job |= {"flags": list(base_flags), "seed": seed, "grace_s": grace_s, "program": list(program)}
        view = _View(study, folder, base_flags, console)
        try:
            with view.live():
                _run_workers(study, folder, job, num_workers, view)
        finally:
            summary = summarize_sweep(study, folder, base_flags)
            write_summary(folder, summary)
    print_sweep_summary(summary, console)
    return summary


def _run_workers(study: SweepStudy, folder: Path, job: Mapping[str, Any], number: int, view: "_View") -> None:
    """Keep `number` workers at it until the queue is empty; replace those that die."""
    workers: list[subprocess.Popen] = []
    restarts = 0
    interrupted = False

    def stop(*_: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt  # asked twice
        interrupted = True
        for worker in workers:
            worker.terminate()

    previous = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _logs(folder, number) as logs:
            environments = [worker_environment(index, number, os.environ) for index in range(number)]
            workers.extend(map(partial(_start_worker, job), logs, environments))
            while any(worker.poll() is None for worker in workers):
                view.show()
                time.sleep(_TICK_S)
                for index, worker in enumerate(workers):
                    if not worker.poll() or interrupted:
                        continue
                    restarts += 1
                    if restarts > _MAX_RESTARTS:
                        raise SweepError(f"workers keep dying; see {folder}/worker-{index}.log")
                    view.say(f"worker {index} died (exit code {worker.returncode}); another one takes over")
                    workers[index] = _start_worker(job, logs[index], environments[index])
            view.show()
            failed = [index for index, worker in enumerate(workers) if worker.returncode]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for each, handler in previous.items():
            signal.signal(each, handler)
    if interrupted:
        raise KeyboardInterrupt
    if failed and study.unfinished():
        raise SweepError(f"workers failed; see {folder}/worker-{failed[0]}.log")


def worker_environment(index: int, number: int, environment: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment, so that several share a machine's GPUs.

    Each takes the memory it needs instead of most of it at the start, and of several GPUs that are named in
    CUDA_VISIBLE_DEVICES its own share.
    """
    mine = dict(environment)
    if number > 1:
        mine.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        gpus = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        if len(gpus) > 1:
            mine["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index::number] or [gpus[index % len(gpus)]])
    return mine


def _start_worker(job: Mapping[str, Any], log: TextIO, environment: Mapping[str, str]) -> subprocess.Popen:
    worker = subprocess.Popen(
        [sys.executable, "-m", "jacreg_train.experiments.sweep_worker"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the launcher, which stops the workers once
    )
    assert worker.stdin is not None
    json.dump(job, worker.stdin, default=str)
    worker.stdin.close()
    return worker


@contextmanager
def _logs(folder: Path, number: int) -> Iterator[Sequence[TextIO]]:
    files = [open(folder / f"worker-{index}.log", "a") for index in range(number)]  # noqa: SIM115
    try:
        yield files
    finally:
        for file in files:
            file.close()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One launcher a folder; the system drops the lock with its process."""
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SweepError(f"--workdir={folder}: another launcher runs there") from None
        yield


class _View:
    """The live table on a terminal; a line for every change elsewhere. Keeps `sweep.json` up to date."""

    def __init__(self, study: SweepStudy, folder: Path, base_flags: Sequence[str], console: Console):
        self._study, self._folder, self._base_flags, self._console = study, folder, base_flags, console
        self._live: Live | None = None
        self._shown: dict[int, tuple[str, int]] = {}

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def show(self) -> None:
        trials = [describe_trial(self._study, trial, self._folder, self._base_flags) for trial in self._study.trials()]
        changed = {
            trial["trial"]: (trial["state"], trial["kills"])
            for trial in trials
            if self._shown.get(trial["trial"], ("waiting", 0)) != (trial["state"], trial["kills"])
        }
        if changed:
            self._shown |= changed
            write_summary(self._folder, summarize_sweep(self._study, self._folder, self._base_flags))
        if self._live is not None:
            self._live.update(self._table(trials), refresh=True)
        else:
            for trial in trials:
                if trial["trial"] in changed:
                    self.say(self._line(trial))

    def _line(self, trial: Mapping[str, Any]) -> str:
        said = ", ".join(f"{name} = {cell(value)}" for name, value in trial["parameters"].items())
        ending = ""
        if trial["value"] is not None:
            ending = f": {self._study.sweep.metric} {cell(trial['value'])}, {format_duration(trial['seconds'])}"
        elif trial["reason"]:
            ending = f": {trial['reason']}"
        again = " again" if trial["kills"] and trial["state"] in ("waiting", "running") else ""
        return f"trial {trial['trial']} {trial['state']}{again} ({said}){ending}"

    def _table(self, trials: Sequence[Mapping[str, Any]]) -> Table:
        sweep = self._study.sweep
        finished = sum(trial["state"] not in ("waiting", "running") for trial in trials)
        table = Table(title=f"{sweep.name}: {finished} of {len(trials)} trials", title_justify="left")
        for heading in ("trial", "state", *(parameter.path for parameter in sweep.parameters)):
            table.add_column(heading)
        for heading in ("step", sweep.metric, "time"):
            table.add_column(heading, justify="right")
        for trial in _window(trials, self._console.height - 8):
            style = _STYLES.get(trial["state"], "dim")
            cells = [Text(cell(trial["parameters"].get(each.path, ""))) for each in sweep.parameters]
            value = trial["value"] if trial["value"] is not None else trial["last_value"]
            step = _last_step(self._folder / trial["workdir"]) if trial["state"] == "running" else ""
            seconds = "" if trial["seconds"] is None else format_duration(trial["seconds"])
            table.add_row(str(trial["trial"]), trial["state"], *cells, step, cell(value), seconds, style=style)
        return table


def _window(trials: Sequence[Mapping[str, Any]], rows: int) -> Sequence[Mapping[str, Any]]:
    """The trials that fit the screen: around the first that is not finished."""
    if len(trials) <= rows:
        return trials
    busy = next((i for i, trial in enumerate(trials) if trial["state"] in ("waiting", "running")), len(trials))
    start = max(0, min(busy - rows // 2, len(trials) - rows))
    return trials[start : start + max(rows, 1)]


def _last_step(workdir: Path) -> str:
    try:
        with open(workdir / METRICS_FILE, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 10_000))
            lines = file.read().split(b"\n")
        return str(json.loads(lines[-2])["step"])
    except (OSError, ValueError, IndexError):  # nothing recorded yet
        return ""
