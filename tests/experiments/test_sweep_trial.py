"""One trial's process: its records are seen as they come, and however it ends, it is said how."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from jacreg_train.experiments.sweep_trial import run_trial

FAKE = Path(__file__).parent / "fake_run.py"


def trial(folder, weight=1.0, metric="test/accuracy", num_steps=5, **callbacks):
    command = [sys.executable, str(FAKE), f"--workdir={folder}", f"--config.jacobian.weight={weight}"]
    return run_trial([*command, f"--config.num_steps={num_steps}"], folder, metric, tick_s=0.02, **callbacks)


def test_done_with_every_record_seen(tmp_path):
    seen: list[tuple[int, float]] = []
    ticks: list[int] = []

    def on_value(count, value):
        seen.append((count, value))
        return False

    outcome = trial(tmp_path / "a", on_value=on_value, on_tick=lambda: ticks.append(1))
    assert outcome.kind == "done"
    assert outcome.values == (1, 2, 3, 4, 5)
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    assert ticks


def test_pruned_runs_stop_in_order(tmp_path):
    outcome = trial(tmp_path, num_steps=500, on_value=lambda count, value: count >= 3)
    assert outcome.kind == "pruned"
    assert 3 <= len(outcome.values) < 100


def test_a_stop_request_counts_as_killed(tmp_path):
    start = time.monotonic()
    outcome = trial(tmp_path, num_steps=500, stopped=lambda: time.monotonic() - start > 1)
    assert outcome.kind == "killed"


def test_killed_from_outside(tmp_path):
    assert trial(tmp_path, weight=9).kind == "killed"
    again = trial(tmp_path, weight=9)  # resumes
    assert again.kind == "done"
    assert again.values == (9, 18, 27, 36, 45)


def test_a_failure_says_what_the_run_said_last(tmp_path):
    outcome = trial(tmp_path, weight=13)
    assert outcome.kind == "failed"
    assert outcome.reason == "exit code 1: jacreg-train: config.jacobian.weight = 13: choose another one"


def test_a_metric_that_was_not_recorded(tmp_path):
    outcome = trial(tmp_path, metric="test/nll")
    assert (outcome.kind, outcome.reason) == ("failed", "the run recorded no test/nll")


def test_a_failing_callback_leaves_no_process(tmp_path):
    def fail():
        raise RuntimeError("database gone")

    with pytest.raises(RuntimeError, match="database gone"):
        trial(tmp_path, num_steps=500, on_tick=fail)
    records = (tmp_path / "metrics.jsonl").read_text() if (tmp_path / "metrics.jsonl").exists() else ""
    time.sleep(0.2)
    assert records == ((tmp_path / "metrics.jsonl").read_text() if records else "")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next try waits for the run's end")
def test_a_killed_worker_takes_its_run_along(tmp_path):
    code = f"""
from pathlib import Path
from jacreg_train.experiments.sweep_trial import run_trial
command = [{sys.executable!r}, {str(FAKE)!r}, "--workdir={tmp_path}", "--config.num_steps=2000"]
run_trial(command, Path({str(tmp_path)!r}), "x")
"""
    worker = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "metrics.jsonl").exists():
        time.sleep(0.02)
    worker.kill()
    worker.wait()
    time.sleep(0.3)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    time.sleep(0.3)
    assert (tmp_path / "metrics.jsonl").stat().st_size == size
