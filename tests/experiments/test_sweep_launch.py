"""Whole sweeps with a stand-in for the run: workers, kills, resumes, the summary."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from jacreg_train.experiments.sweep_file import SweepError, parse_sweep
from jacreg_train.experiments.sweep_launch import launch, worker_environment

FAKE = Path(__file__).parent / "fake_run.py"
LAUNCHER = """
import json, sys
from pathlib import Path
from jacreg_train.experiments.sweep_file import parse_sweep
from jacreg_train.experiments.sweep_launch import launch, worker_environment
content, folder, program, flags = map(json.loads, sys.argv[1:])
launch(parse_sweep(content), Path(folder), base_flags=flags, num_workers=2, grace_s=6, program=[program])
"""


def content(weights, **changes):
    base = {
        "name": "fake",
        "method": "grid",
        "metric": {"name": "test/accuracy", "goal": "maximize"},
        "parameters": {"jacobian.weight": {"values": weights}},
    }
    return base | changes


def run(folder, weights, num_steps=3, **changes):
    console = Console(file=open(os.devnull, "w"), force_terminal=False)  # noqa: SIM115
    sweep = parse_sweep(content(weights))
    flags = [f"--config.num_steps={num_steps}"]
    options: dict = {"num_workers": 2, "program": [str(FAKE)], "console": console, "base_flags": flags} | changes
    return launch(sweep, folder, **options)


def starts(folder, slot):
    return (folder / "trials" / f"{slot:04d}" / "starts").read_text().splitlines()


def test_a_sweep_from_start_to_end(tmp_path):
    flags = ["--config.num_steps=3", "--config.x=postgresql://me:hidden@host/db"]
    summary = run(tmp_path, [1.0, 3.0, 13.0, 7.0, 9.0], base_flags=flags)
    states = [trial["state"] for trial in summary["trials"]]
    assert states == ["done", "done", "failed", "failed", "done"]
    assert summary["best"] == [4, 1, 0]
    assert [trial["value"] for trial in summary["trials"]] == [3.0, 9.0, None, None, 27.0]
    assert "choose another one" in summary["trials"][2]["reason"]
    assert summary["trials"][3]["reason"] == "the metric is nan"
    assert len(starts(tmp_path, 4)) == 2  # killed once
    assert summary["trials"][4]["kills"] == 1
    assert json.loads((tmp_path / "sweep.json").read_text()) == summary
    command = summary["trials"][4]["command"]
    assert command.startswith("jacreg-train --config.num_steps=3 ")
    assert "hidden" not in (tmp_path / "sweep.json").read_text()
    assert "--config.jacobian.weight=9.0" in command
    assert "--config.wandb.group=fake" in command

    again = run(tmp_path, [1.0, 3.0, 13.0, 7.0, 9.0], base_flags=flags)  # exhausted: nothing runs
    assert again["trials"] == summary["trials"]
    assert [len(starts(tmp_path, slot)) for slot in range(5)] == [1, 1, 1, 1, 2]


def test_hopeless_trials_are_pruned(tmp_path):
    sweep = parse_sweep(content([5.0, 2.0], early_terminate={"type": "hyperband", "min_iter": 2, "eta": 2}))
    flags = ["--config.num_steps=40", "--config.step_s=0.1"]
    summary = launch(sweep, tmp_path, base_flags=flags, num_workers=1, program=[str(FAKE)])
    assert [trial["state"] for trial in summary["trials"]] == ["done", "pruned"]
    assert summary["trials"][1]["last_value"] < 80  # it did not reach the end


def test_a_live_table_on_a_terminal(tmp_path):
    console = Console(file=open(tmp_path / "screen", "w"), force_terminal=True, width=120, height=12)  # noqa: SIM115
    run(tmp_path, [1.0, 2.0], console=console)
    console.file.flush()
    screen = (tmp_path / "screen").read_text()
    assert "2 of 2 trials" in screen
    assert "best trials of fake" in screen
    assert "the best trial again" in screen


@pytest.mark.parametrize(
    ("number", "visible", "shares"),
    [(2, "0,1,2,3", ["0,2", "1,3"]), (3, "0,1", ["0", "1", "0"]), (2, "5", ["5", "5"]), (1, "0,1", ["0,1"])],
)
def test_workers_share_gpus(number, visible, shares):
    environments = [worker_environment(index, number, {"CUDA_VISIBLE_DEVICES": visible}) for index in range(number)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == shares
    assert all((each.get("XLA_PYTHON_CLIENT_PREALLOCATE") == "false") == (number > 1) for each in environments)
    assert worker_environment(0, 2, {}) == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def test_two_launchers_on_one_folder(tmp_path):
    (tmp_path / ".lock").touch()
    import fcntl

    with open(tmp_path / ".lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SweepError, match="another launcher runs there"):
            run(tmp_path, [1.0])


def start_launcher(folder, weights, num_steps, step_s):
    flags = [f"--config.num_steps={num_steps}", f"--config.step_s={step_s}"]
    arguments = [json.dumps(each) for each in (content(weights), str(folder), str(FAKE), flags)]
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, *arguments], stdout=subprocess.PIPE, text=True)


def children(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(each) for each in listed.stdout.split()]


def wait_until(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def recorded(folder):
    return [len(path.read_text().splitlines()) for path in sorted(folder.glob("trials/*/metrics.jsonl"))]


@pytest.mark.slow
def test_kill_a_worker_then_the_launcher(tmp_path):
    """A killed worker's trial is run again, finished ones are not, and no process is left behind."""
    weights = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    launcher = start_launcher(tmp_path, weights, num_steps=40, step_s=0.1)
    wait_until(lambda: len(recorded(tmp_path)) == 2 and min(recorded(tmp_path)) > 5)
    worker = children(launcher.pid)[0]
    (running,) = children(worker)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{running}") or "Z" in Path(f"/proc/{running}/stat").read_text())
    wait_until(lambda: sum(count == 40 for count in recorded(tmp_path)) >= 2)
    wait_until(lambda: any(5 < count < 35 for count in recorded(tmp_path)))
    workers = children(launcher.pid)
    assert len(workers) == 2  # another one took over
    launcher.kill()
    launcher.wait()
    launcher = start_launcher(tmp_path, weights, num_steps=40, step_s=0.01)
    output, _ = launcher.communicate(timeout=90)
    assert launcher.returncode == 0, output
    assert not any(os.path.exists(f"/proc/{each}") for each in workers)

    summary = json.loads((tmp_path / "sweep.json").read_text())
    assert [trial["state"] for trial in summary["trials"]] == ["done"] * 6
    assert [trial["value"] for trial in summary["trials"]] == [40 * weight for weight in weights]
    for path in sorted(tmp_path.glob("trials/*/metrics.jsonl")):
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, 41))
    again = sum(len(starts(tmp_path, slot)) for slot in range(6)) - 6
    assert 2 <= again <= 4  # the worker's trial, and those that ran when the launcher died


@pytest.mark.slow
def test_ctrl_c_stops_in_order_and_the_same_command_goes_on(tmp_path):
    launcher = start_launcher(tmp_path, [1.0, 2.0], num_steps=40, step_s=0.1)
    wait_until(lambda: len(recorded(tmp_path)) == 2 and min(recorded(tmp_path)) > 3)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=30)
    assert launcher.returncode != 0
    stopped = recorded(tmp_path)
    assert max(stopped) < 40
    time.sleep(0.5)
    assert recorded(tmp_path) == stopped

    launcher = start_launcher(tmp_path, [1.0, 2.0], num_steps=40, step_s=0.01)
    launcher.communicate(timeout=60)
    assert recorded(tmp_path) == [40, 40]
    assert [len(starts(tmp_path, slot)) for slot in range(2)] == [2, 2]
