import io
import os
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from jacreg_train.telemetry import ProgressWriter
from jacreg_train.telemetry.progress import format_duration


def show(console, writes, **arguments):
    writer = ProgressWriter(100, console=console, **arguments)
    for step, metrics in writes:
        writer.write(step, metrics)
    writer.close()
    return console.file.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), force_terminal=False, soft_wrap=True)
    metrics = {"train/loss": 0.3127, "time/step_ms": 12.34, "train/epoch": 1.0}
    output = show(console, [(50, metrics), (100, {})])
    assert output == "step 50/100  loss 0.3127  step 12.3 ms  left -:--\nstep 100/100    left 0:00\n"
    assert "\x1b" not in output


def test_a_bar_with_the_time_left_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    writes = [(50, {"train/loss": 0.5}), (100, {"test/accuracy": 0.975})]
    output = show(console, writes)
    assert "100/100" in output
    assert "left" in output
    assert "test accuracy 0.9750" in output


def test_time_left_counts_from_the_first_write(monkeypatch):
    """What comes before it (compilation, a restored checkpoint) says nothing about the time of a step."""
    clock = iter([1000.0, 1002.0])
    monkeypatch.setattr("jacreg_train.telemetry.progress.time.monotonic", lambda: next(clock))
    console = Console(file=io.StringIO(), force_terminal=False)
    assert "step 70/100    left 0:06\n" in show(console, [(60, {}), (70, {})], first_step=50)


def test_durations():
    assert [format_duration(seconds) for seconds in (0, 61.6, 3723)] == ["0:00", "1:02", "1:02:03"]


def test_a_pipe_that_nobody_reads_holds_up_nobody():
    """It takes some hundred lines; the others wait in a thread, or are left out."""
    reader, writer = os.pipe()
    lines = []
    with open(writer, "w") as out:
        progress = ProgressWriter(10**6, console=Console(file=out, force_terminal=False, soft_wrap=True))
        slowest = 0.0
        for step in range(5000):
            start = time.monotonic()
            progress.write(step, {"train/loss": 1.0})
            slowest = max(slowest, time.monotonic() - start)
        drain = threading.Thread(target=lambda: lines.extend(open(reader)))  # noqa: SIM115
        drain.start()
        progress.close()
    drain.join()
    assert slowest < 0.5
    assert lines[0].startswith("step 0/1000000  loss 1")
    assert 100 < len(lines) < 5000
    assert lines[-1].endswith("\n")


@pytest.mark.parametrize("output", ["a pipe that is closed", "a full disk"])
def test_where_standard_output_takes_no_more_there_is_one_warning(output):
    code = """
from jacreg_train.telemetry.progress import ForgivingConsole, ProgressWriter
console = ForgivingConsole()
progress = ProgressWriter(9, console=console)
for step in range(9):
    progress.write(step, {"train/loss": 1.0})
progress.close()
console.print("the summary")
"""
    if output == "a full disk":
        if not os.path.exists("/dev/full"):
            pytest.skip("this system has no /dev/full")
        out = open("/dev/full", "w")  # noqa: SIM115
    else:
        reader, writer = os.pipe()
        os.close(reader)
        out = open(writer, "w")  # noqa: SIM115
    with out:
        done = subprocess.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "standard output takes no more" in done.stderr
    assert "training goes on" in done.stderr
