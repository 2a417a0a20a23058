"""What can end a run other than success. ``main`` turns each into one line and an exit code."""

import difflib
import signal
from collections.abc import Iterable


class ConfigError(ValueError):
    """A mistake of the user's, found before anything compiles. One line: field, value, choices."""


class Diverged(RuntimeError):
    """The loss, the penalty, a gradient or an update is not finite. The message names step, part and array."""


class WorkdirError(RuntimeError):
    """The run's folder can no longer be written or read, or is gone. One line: where, why, what is left."""


class OutOfMemory(RuntimeError):
    """The step takes more memory than there is. The message names the flag to change."""


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came, and the state after ``step`` is in a checkpoint. ``exit_code`` is 128 + signal."""

    def __init__(self, signal_number: int, step: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}; checkpoint written")
        self.exit_code = 128 + signal_number
        self.step = step


def wrong_choice(field: str, value: object, choices: Iterable[object]) -> ConfigError:
    """The error for a name that is in no table, with the choices and the closest one."""
    names = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return ConfigError(f"config.{field} = {value!r}: choose one of {', '.join(names)}{hint}")
