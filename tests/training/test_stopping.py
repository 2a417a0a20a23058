import os
import signal
import subprocess
import sys
import time

import pytest

from jacreg_train.training.stopping import StopRequest


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_request_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        wait_for(lambda: stop.signal is not None)
        assert stop.signal == number
    assert signal.getsignal(number) is before


# The main thread sits in one call into C, as it does inside the compiler: no Python handler would run there.
STUCK = """
import ctypes
from jacreg_train.training.stopping import StopRequest
with StopRequest() as stop:
    print("ready", flush=True)
    sleep = ctypes.CDLL(None).sleep
    while True:
        sleep(60)
"""


def test_a_second_ctrl_c_stops_at_once_even_inside_a_long_call():
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
