"""One trial: an ordinary `python -m jacreg_train.main` process in its own workdir, watched from outside."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jacreg_train.telemetry.writers import METRICS_FILE

OUTPUT_FILE = "output.log"
# Where a run resumes that a worker or a person interrupted: not failures.
_STOPPED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
_STOP_PATIENCE_S = 120.0

# On Linux a killed worker takes its run along (prctl's option 1); elsewhere the next try waits for the run's end.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("its worker is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Outcome:
    """How a trial's process ended.

    Attributes:
        kind: "done", "pruned", "killed" (to be run again) or "failed".
        values: the metric, in order of its records.
        reason: of a failure.
    """

    kind: str
    values: tuple[float, ...] = ()
    reason: str = ""


def run_trial(
    command: Sequence[str],
    workdir: Path,
    metric: str,
    *,
    on_value: Callable[[int, float], bool] = lambda index, value: False,
    on_tick: Callable[[], None] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
    tick_s: float = 0.5,
) -> Outcome:
    """Run a trial to its end.

    Args:
        command: its command line.
        workdir: its folder; what it prints goes to `output.log` there.
        metric: name of the metric, read from the run's JSON lines as they come.
        on_value: called with (how many records the metric has by now, its value); True prunes the trial.
        on_tick: called every `tick_s` seconds.
        stopped: True stops the run in order; it counts as killed.

    Raises:
        Whatever the callbacks raise; the process is killed first.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    _wait_for_lock(workdir / ".lock", on_tick, tick_s)
    with open(workdir / OUTPUT_FILE, "ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the worker, which stops the run once
        )
    tail = _Tail(workdir / METRICS_FILE, metric)
    seen = 0
    pruned = asked = False
    try:
        while True:
            ended = process.poll() is not None  # before reading, so that the last records are read
            values = tail.values()
            for index in range(seen, len(values)):
                pruned |= on_value(index + 1, values[index])
            seen = max(seen, len(values))
            if ended:
                break
            if (pruned or stopped()) and not asked:
                asked = True
                process.terminate()
                deadline = time.monotonic() + _STOP_PATIENCE_S
            if asked and time.monotonic() > deadline:
                process.kill()
            on_tick()
            _sleep(process, tick_s)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode == 0 and values:
        return Outcome("done", tuple(values))
    if pruned:
        return Outcome("pruned", tuple(values))
    if process.returncode in _STOPPED:
        return Outcome("killed", tuple(values), f"the run ended by exit code {process.returncode}")
    if process.returncode == 0:
        return Outcome("failed", reason=f"the run recorded no {metric}")
    return Outcome("failed", tuple(values), _last_line(workdir / OUTPUT_FILE, start, process.returncode))


class _Tail:
    """The values of one metric in a growing JSON-lines file; reads only what is new."""

    def __init__(self, path: Path, metric: str):
        self._path, self._metric = path, metric
        self._forget()

    def _forget(self, inode: int | None = None) -> None:
        self._inode, self._position, self._values = inode, 0, []  # type: ignore[var-annotated]

    def values(self) -> list[float]:
        try:
            with open(self._path, "rb") as file:
                if (inode := os.fstat(file.fileno()).st_ino) != self._inode:  # a resumed run replaces the file
                    self._forget(inode)
                file.seek(self._position)
                whole, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
        except FileNotFoundError:
            return []
        self._position += len(whole) + len(newline)
        records = [json.loads(line) for line in whole.splitlines()]
        self._values += [float(record[self._metric]) for record in records if self._metric in record]
        return self._values


def _sleep(process: subprocess.Popen, seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _wait_for_lock(path: Path, on_tick: Callable[[], None], tick_s: float) -> None:
    """Wait while a run that lost its worker still holds the workdir; then this one resumes from its end."""
    while path.exists():
        with open(path, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                on_tick()
                time.sleep(tick_s)


def _last_line(path: Path, start: int, code: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(start, os.path.getsize(path) - 4000))
        lines = file.read().decode(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing was printed")
    return f"exit code {code}: {said[:300]}"
