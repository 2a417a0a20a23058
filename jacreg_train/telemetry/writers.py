"""Metric writers: one protocol, the durable local record (JSON lines), and a group of writers."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from jacreg_train.telemetry.background import Background

METRICS_FILE = "metrics.jsonl"
# JSON has no such numbers; as strings any JSON reader takes the file, and `float` turns them back.
_NON_FINITE = ("NaN", "Infinity", "-Infinity")
PATIENCE_S = 0.2  # how long a write waits for its disk before it goes on
MOST_PENDING = 10_000  # records of about a kilobyte each


class MetricWriter(Protocol):
    """Where metrics go. Steps never decrease within one writer."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step (scalars, units in their names)."""

    def close(self) -> None:
        """Record everything still pending; further calls of `close` do nothing."""


class WriterGroup:
    """Several writers as one, in the given order (the durable one goes first)."""

    def __init__(self, writers: Iterable[MetricWriter]):
        self._writers = tuple(writers)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for writer in self._writers:
            writer.write(step, metrics)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Whether the durable record holds everything, after waiting so long; None: until it does."""
        return all(writer.flush(timeout_s) for writer in self._writers if isinstance(writer, JsonLinesWriter))

    def close(self) -> None:
        """Close every writer, also after one of them failed; then raise the failures."""
        failures = []
        for writer in self._writers:
            try:
                writer.close()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0] if len(failures) == 1 else ExceptionGroup("writers failed to close", failures)


class JsonLinesWriter:
    """Append metrics to a file, one JSON object a line, each handed to the system before `write` returns.

    Only where the disk does not answer, `write` returns after a fifth of a second, and a thread goes on waiting;
    `flush` tells whether everything is there.

    A line is `{"step": int, "wall_time_s": seconds since the epoch, name: value, ...}`; NaN and infinities
    are the strings "NaN", "Infinity" and "-Infinity". A `kill -9` loses nothing that was written; whatever
    else happens, the file holds whole lines up to a possibly torn last one.

    Args:
        path: the file; its folder is made where missing.
        restored_step: the step that training resumes from: later lines, which will be written again, are
            dropped. None for a start from nothing: all lines are dropped.
        check: called before each line, in the thread; what it raises, `write` raises.

    Raises:
        OSError: the file can't be written (from the constructor, `write`, `flush` and `close`), or 10,000 records
            wait for the disk.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        restored_step: int | None = None,
        check: Callable[[], None] = lambda: None,
    ):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            kept = [] if restored_step is None else _lines_until(self.path, restored_step)
            replace_file(self.path, "".join(line + "\n" for line in kept))
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  closed by `close`
        self._check = check
        self._background = Background("json-lines")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        record: dict[str, Any] = {"step": int(step), "wall_time_s": round(time.time(), 3)}
        record |= {name: _encode(value) for name, value in metrics.items()}
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        behind = len(self._background)
        if behind >= MOST_PENDING:
            raise OSError(f"{behind} records wait to be written to {self.path}; does the disk answer?")
        self._background.submit(lambda: self._append(line))
        self._background.wait(0 if behind else PATIENCE_S)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Whether everything was handed to the system, after waiting for it so long; None: until it is."""
        return self._background.wait(timeout_s)

    def close(self) -> None:
        try:
            self._background.close()
        finally:
            self._file.close()

    def _append(self, line: bytes) -> None:
        self._check()
        end = self._file.seek(0, os.SEEK_END)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written; is the disk full?")
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)  # no torn line in the middle of the file
            raise


def read_records(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a run, in step order, one dict a step (several lines of one step are merged).

    Args:
        workdir: the run's folder, or the path of its JSON-lines file.

    Returns:
        Dicts with "step", "wall_time_s" and the metrics as floats; empty where nothing was recorded yet.
        A torn last line is left out.

    Raises:
        ValueError: a line other than the last is no record; the message names file and line.
    """
    path = Path(workdir)
    path = path / METRICS_FILE if path.is_dir() else path
    if not path.exists():
        return []
    by_step: dict[int, dict[str, Any]] = {}
    for line in _whole_lines(path):
        record = {name: _decode(value) for name, value in json.loads(line).items()}
        by_step.setdefault(record["step"], {}).update(record)
    return [by_step[step] for step in sorted(by_step)]


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a crash at any moment leaves either the old content or the new."""
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _whole_lines(path: Path) -> list[str]:
    """The lines that are records; only the last may fail to be one (it was torn by a crash)."""
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise ValueError("no step")
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: not a metric record: {line[:80]!r}") from None
        kept.append(line)
    return kept


def _lines_until(path: Path, step: int) -> list[str]:
    return [line for line in _whole_lines(path) if json.loads(line)["step"] <= step]


def _encode(value: Any) -> float | int | str:
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decode(value: Any) -> Any:
    return float(value) if value in _NON_FINITE else value
