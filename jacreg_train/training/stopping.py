"""SIGTERM and Ctrl-C: the first asks the loop to stop in order, a second Ctrl-C ends the process at once."""

import contextlib
import os
import signal
import socket
import threading
from types import TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPING = "stopping after this step, or compilation and step, with a checkpoint; Ctrl-C again ends at once"
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it
PATIENCE_S = 0.2


class StopRequest:
    """While entered, ``signal`` is the first stop signal that came in, else None.

    A thread reads the signals from a wake-up socket, because Python's own handlers wait while the main
    thread is inside the compiler or a long step; a second Ctrl-C must end the process there, too (exit code
    130). Outside the main thread, where no handlers can be set, it does nothing and signals act as before.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "StopRequest":
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._read, self._write = socket.socketpair()
            self._write.setblocking(False)
            self._previous_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
            self._previous = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
            self._thread = threading.Thread(target=self._watch, name="stop-request", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._active:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._previous_fd)
            self._write.close()  # ends the thread
            self._thread.join()
            self._read.close()

    def _watch(self) -> None:
        while data := self._read.recv(1):
            number = data[0]
            if number not in SIGNALS:
                continue
            if self.signal is None:
                self.signal = number
                _write(2, f"jacreg-train: {signal.Signals(number).name}: {STOPPING}\n")
            elif number == signal.SIGINT:
                if os.isatty(1):
                    _write(1, SHOW_CURSOR).join(PATIENCE_S)
                os._exit(128 + number)


def _write(descriptor: int, text: str) -> threading.Thread:
    """Write beside everything else: a terminal that is stopped must not hold up the next signal."""

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(descriptor, text.encode())

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread
