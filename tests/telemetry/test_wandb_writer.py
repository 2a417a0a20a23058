"""W&B: what it records, and that no fault of it ever stops or slows training."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from jacreg_train.telemetry import WandbWriter, read_wandb_history

PREAMBLE = """
    import os, signal, sys, time
    from pathlib import Path
    from jacreg_train.telemetry import WandbWriter

    def train(steps, pause_s=0.0, then=lambda step: None, **arguments):
        writer = WandbWriter(sys.argv[1], project="jacobian", run_id="run1", close_timeout_s=4, **arguments)
        slowest = 0.0
        for step in steps:
            start = time.monotonic()
            metrics = {"train/loss": 1 / (1 + step), "time/step_ms": float(step)}
            writer.write(step, metrics | {"test/accuracy": -abs(step - 3)})
            slowest = max(slowest, time.monotonic() - start)
            then(step)
            time.sleep(pause_s)
        start = time.monotonic()
        writer.close()
        print("slowest", slowest, "closed", time.monotonic() - start, flush=True)
"""


def start(code, folder, argv=(), **environment):
    # A home of its own: no login of whoever runs the tests.
    environment = {**os.environ, "HOME": str(folder), "NETRC": str(folder / "netrc"), **environment}
    program = textwrap.dedent(PREAMBLE) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), *argv],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code, folder, argv=(), **environment):
    """Run it; returns (seconds of the slowest write, seconds of close, warnings)."""
    process = start(code, folder, argv, **environment)
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    _, slowest, _, closed = output.split()
    return float(slowest), float(closed), [line for line in errors.splitlines() if line.startswith("W&B")]


def inspect(folder, *options):
    (path,) = Path(folder).glob("wandb/*run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *options, "--json", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def logged_in(address):
    return {"WANDB_API_KEY": "0123456789" * 4, "WANDB_BASE_URL": address}


def test_what_an_offline_run_records(tmp_path):
    _, _, warnings = run(
        """
        config = {"model": {"name": "cnn"}, "wandb": {"api_key": "SECRET-IN-CONFIG"}}
        train([0, 1, 2, 3, 3, 4], group="g", name="n", tags=["a", "b"], config=config)
        """,
        tmp_path,
        argv=["--api_key=SECRET-IN-ARGV"],
        WANDB_API_KEY="SECRET-IN-ENVIRONMENT",
    )
    assert warnings == []
    summary = json.loads(inspect(tmp_path, "--summary"))
    assert summary["config"] == {"model": {"name": "cnn"}, "wandb": {"api_key": "[redacted]"}}
    assert summary["summary"]["test/accuracy"] == {"max": 0}  # the best
    assert summary["summary"]["time/step_ms"] == 2.5  # the median
    assert summary["summary"]["train/loss"] == 0.2  # the last

    records = [json.loads(line) for line in inspect(tmp_path).splitlines()]
    run_record = next(record["run"] for record in records if "run" in record)
    assert (run_record["run_group"], run_record["display_name"], run_record["tags"]) == ("g", "n", ["a", "b"])
    axes = {each.get("name") or each.get("glob_name"): each for r in records if (each := r.get("metric"))}
    assert {name for name, axis in axes.items() if axis.get("step_metric") == "step"} >= {
        *("train/*", "test/*", "time/*", "memory/*"),
        "test/accuracy",
    }
    assert [record["step"] for record in read_wandb_history(tmp_path)] == [0, 1, 2, 3, 4]
    assert sum("history" in record for record in records) == 6  # both records of step 3
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"SECRET-IN" not in path.read_bytes(), path


def test_killed_and_resumed_each_step_once(tmp_path):
    kill = """
        def kill(step):
            while not list(Path(sys.argv[1]).glob("wandb/*/*.wandb")):
                time.sleep(0.1)
            if step == 80:
                os.kill(os.getpid(), signal.SIGKILL)

        train(range(0, 100, 10), 0.5, then=kill)
    """
    process = start(kill, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    # At half a second a step: the last second may be lost, and half of another one for a busy machine.
    before = [record["step"] for record in read_wandb_history(tmp_path)]
    assert before[:6] == [0, 10, 20, 30, 40, 50]

    run("train(range(40, 100, 10))", tmp_path)
    assert [record["step"] for record in read_wandb_history(tmp_path)] == list(range(0, 100, 10))


def test_online_where_nobody_is_logged_in(tmp_path):
    _, _, warnings = run('train(range(3), mode="online")', tmp_path)
    assert len(warnings) == 1
    assert "not logged in" in warnings[0]
    assert len(read_wandb_history(tmp_path)) == 3


def test_online_without_a_network(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening: refuses
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        slowest, closed, warnings = run('train(range(3), mode="online")', tmp_path, **logged_in(address))
    assert slowest < 0.5
    assert closed < 9
    assert len(warnings) == 1
    assert "no answer from" in warnings[0]
    assert len(read_wandb_history(tmp_path)) == 3


def test_online_with_a_server(tmp_path, wandb_server):
    code = 'train(range(5), mode="online", group="g", name="n", config={"a": {"b": 1}})'
    _, _, warnings = run(code, tmp_path, **logged_in(wandb_server.address))
    assert warnings == []
    assert [record["step"] for record in wandb_server.history()] == [0, 1, 2, 3, 4]
    upsert = next(r["variables"] for _, r in wandb_server.requests if r.get("operationName") == "UpsertBucket")
    assert (upsert["name"], upsert["groupName"], upsert["displayName"]) == ("run1", "g", "n")


def test_a_server_that_never_answers(tmp_path, wandb_server):
    wandb_server.stall.set()
    code = 'train(range(3), mode="online", start_timeout_s=1)'
    slowest, closed, warnings = run(code, tmp_path, **logged_in(wandb_server.address))
    assert slowest < 0.5
    assert closed < 9
    assert len(warnings) == 1
    assert "no answer from" in warnings[0]
    assert len(read_wandb_history(tmp_path)) == 3


def test_a_server_that_stops_answering(tmp_path, wandb_server):
    """It stalls once the first data have come; training goes on, the local record is whole."""
    code = 'train(range(40), 0.1, mode="online")'
    process = start(code, tmp_path, **logged_in(wandb_server.address))
    while not any("file_stream" in path for path, _ in wandb_server.requests):
        assert process.poll() is None
        time.sleep(0.05)
    wandb_server.stall.set()
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    _, slowest, _, closed = output.split()
    assert float(slowest) < 0.5
    assert float(closed) < 10
    assert len([line for line in errors.splitlines() if line.startswith("W&B")]) == 1, errors
    assert [record["step"] for record in read_wandb_history(tmp_path)] == list(range(40))


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("making a small disk needs the right to mount one")
    try:
        code = """
            def fill(step):
                if step == 3:
                    time.sleep(2)
                    Path(sys.argv[1], "fill").write_bytes(bytes(1_700_000))

            train(range(8), 0.1, then=fill)
        """
        _, closed, warnings = run(code, disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    assert closed < 10
    assert len(warnings) == 1
    assert "is full; training goes on without it" in warnings[0]


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"wandb\.mode = 'on': must be one of offline, online"):
        WandbWriter(tmp_path, mode="on")
