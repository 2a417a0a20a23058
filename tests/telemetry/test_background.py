"""Jobs in a thread: in order, waited for as long as one likes, and no failure is lost."""

import threading
import time

import pytest

from jacreg_train.telemetry import Background


def fail(message):
    raise OSError(message)


def test_jobs_are_done_in_order():
    done: list[int] = []
    background = Background("test")
    for number in range(100):
        background.submit(lambda number=number: done.append(number))
    assert background.wait()
    assert done == list(range(100))
    assert len(background) == 0
    background.close()


def test_a_job_that_takes_long_is_waited_for_no_longer_than_asked():
    background, release = Background("test"), threading.Event()
    background.submit(release.wait)
    start = time.monotonic()
    assert not background.wait(0.05)
    assert time.monotonic() - start < 1
    assert len(background) == 1
    release.set()
    assert background.wait()
    background.close()


def test_each_failure_is_raised_once_and_the_jobs_after_it_are_done():
    done: list[int] = []
    background = Background("test")
    background.submit(lambda: fail("first"))
    background.submit(lambda: done.append(1))
    background.submit(lambda: fail("second"))
    while not done:
        time.sleep(0.001)
    assert len(background) == 3  # the first is not told yet
    with pytest.raises(OSError, match="first"):
        background.wait()
    with pytest.raises(OSError, match="second"):
        background.close()
