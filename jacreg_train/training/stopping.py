"""SIGTERM and Ctrl-C: the first asks the loop to stop in order, a second Ctrl-C ends the process at once."""

import os
import signal
import socket
import threading
from types import TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
            if self.signal is not None and number == signal.SIGINT:
                os._exit(128 + number)
            self.signal = self.signal or number
