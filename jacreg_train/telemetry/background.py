"""Work that waits for a disk or a terminal, done in a thread, so that the caller waits only as long as it likes."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Background:
    """One thread that does what it is handed, in order.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str):
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._pending: deque[Future[None]] = deque()

    def __len__(self) -> int:
        """How many jobs are not done, or have failed and were not told yet."""
        while self._pending and self._pending[0].done() and self._pending[0].exception() is None:
            self._pending.popleft()
        return len(self._pending)

    def submit(self, job: Callable[[], None]) -> None:
        """Hand over a job; it begins when the ones before it have ended, however they ended."""
        self._pending.append(self._worker.submit(job))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether everything that was handed over is done, after waiting for it so long (None: until it is).

        Raises:
            What a job raised; each failure once, in order.
        """
        wait(self._pending, timeout_s)
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()
        return not self._pending

    def close(self) -> None:
        """Wait for everything and end the thread; raises as `wait` does."""
        self._worker.shutdown()
        self.wait()
