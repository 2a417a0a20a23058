"""A progress bar with the time left on a terminal; plain lines elsewhere."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from jacreg_train.telemetry.background import Background

# What a line shows, in this order, and how: metric -> (label, format).
SHOWN = {
    "train/loss": ("loss", "{:.4g}"),
    "train/penalty": ("penalty", "{:.3g}"),
    "train/accuracy": ("accuracy", "{:.3f}"),
    "time/step_ms": ("step", "{:.3g} ms"),
    "test/accuracy": ("test accuracy", "{:.4f}"),
    "test/nll": ("test NLL", "{:.4f}"),
    "test/squared_jacobian_norm": ("squared Jacobian norm", "{:.4g}"),
}

MOST_PENDING = 100  # lines that a stopped terminal keeps waiting; later ones are left out

_logger = logging.getLogger(__name__)


class ForgivingConsole(Console):
    """A console on standard output, which may go away (a closed pipe, a full disk): one warning, then silence."""

    def __init__(self, *, quiet: bool = False):
        super().__init__(file=sys.stdout, soft_wrap=True, highlight=False, quiet=quiet)

    def print(self, *things: Any, **options: Any) -> None:
        if self.quiet:
            return
        try:
            super().print(*things, **options)
            self.file.flush()
        except (OSError, ValueError, SystemExit) as failure:  # a file that is closed; rich's answer to a closed pipe
            self.quiet = True
            reason = "nobody reads it" if isinstance(failure, SystemExit) else failure
            _logger.warning("standard output takes no more (%s); training goes on", reason)
            with suppress(OSError, ValueError):  # what is left in the buffer would fail again at the end
                descriptor = self.file.fileno()
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), descriptor)


class ProgressWriter:
    """Show how far a run is, its main metrics and the time left.

    Shown by a thread: a terminal that is stopped, or a pipe that nobody reads, holds up nobody.

    Args:
        num_steps: the step at which the run ends.
        first_step: the step it starts from (the restored one after a resume).
        console: where to show it; by default standard output.
    """

    def __init__(self, num_steps: int, *, first_step: int = 0, console: Console | None = None):
        self._console = console or ForgivingConsole()
        self._num_steps = num_steps
        self._background = Background("progress")
        self._timed_from: tuple[int, float] | None = None  # step and time of the first write: compilation is over
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[metrics]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("train", total=num_steps, completed=first_step, metrics="")
            self._bar.start()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        text = format_metrics(metrics)
        if self._bar is None:
            line = f"step {step}/{self._num_steps}  {text}  left {self._time_left(step)}"
            self._later(lambda: self._print(line))
        else:
            self._later(lambda: self._update(step, text))
            if any(name.startswith("test/") for name in metrics):  # evaluations stay on the screen
                self._later(lambda: self._print(f"step {step}/{self._num_steps}  {text}"))

    def close(self) -> None:
        if self._bar is not None:
            self._background.submit(self._bar.stop)
        self._background.close()

    def _later(self, show: Callable[[], None]) -> None:
        if len(self._background) < MOST_PENDING:
            self._background.submit(show)

    def _update(self, step: int, text: str) -> None:
        assert self._bar is not None
        self._bar.update(self._task, completed=step, metrics=text)

    def _print(self, line: str) -> None:
        self._console.print(Text(line))
        self._console.file.flush()

    def _time_left(self, step: int) -> str:
        now = time.monotonic()
        if self._timed_from is None:
            self._timed_from = step, now
        first_step, start = self._timed_from
        if step <= first_step:
            return "0:00" if step >= self._num_steps else "-:--"
        return format_duration((now - start) * max(0, self._num_steps - step) / (step - first_step))


def format_metrics(metrics: Mapping[str, float]) -> str:
    """The main metrics on one line, e.g. `loss 0.31  accuracy 0.953  step 12.3 ms`."""
    return "  ".join(
        f"{label} {form.format(float(metrics[name]))}" for name, (label, form) in SHOWN.items() if name in metrics
    )


def format_duration(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
