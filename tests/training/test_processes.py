"""Two processes on one machine train what one does; the first alone writes logs; both take part in checkpoints."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jacreg_train.main import main
from jacreg_train.telemetry import read_records
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.processes import connect

FLAGS = [
    "--config=configs/synthetic.py",
    "--config.num_epochs=None",
    "--config.batch_size=8",
    "--config.model.name=cnn",
    "--config.model.cnn.widths=(2,)",
    "--config.model.cnn.strides=(2,)",
    "--config.model.cnn.dense_width=None",
    "--config.dataset.synthetic.image_shape=(4,4,1)",
    "--config.dataset.synthetic.num_examples=20",
    "--config.jacobian.estimator.name=stochastic",
    "--config.log.every_steps=1",
    "--config.log.penalty_share_rounds=0",
    "--config.log.gradient_norms=False",
    "--config.evaluation.batch_size=6",
    "--config.evaluation.jacobian_examples=7",
    "--config.wandb.mode=disabled",
    "--config.compilation_cache=off",
]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start_two(workdir, *flags, devices=1, program=("-m", "jacreg_train.main")) -> list[subprocess.Popen]:
    port = free_port()
    settings = {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, *program, *FLAGS, f"--workdir={workdir}", *flags]
    command += [f"--coordinator_address=localhost:{port}", "--num_processes=2"]
    return [
        subprocess.Popen(
            [*command, f"--process_id={index}"],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]


def finish(processes) -> list[tuple[int, str, str]]:
    ended = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, ended, strict=True)]


def test_two_processes_train_what_one_does(tmp_path):
    first, second = finish(start_two(tmp_path / "two", "--config.num_steps=4"))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "step 4/4" in first[1]
    assert "step" not in second[1]
    assert_same_as_one(tmp_path, "--config.num_steps=4")


@pytest.mark.slow
def test_two_processes_of_two_devices_that_share_the_parameters_stop_and_go_on(tmp_path):
    """What each saves are its own parts; the first conv's [3, 3, 1, 2] and the last layer's [8, 3] are split."""
    constant = "--config.optimizer.schedule=constant"
    for steps in (2, 4):
        flags = (constant, "--config.mesh.model=2", f"--config.num_steps={steps}")
        first, second = finish(start_two(tmp_path / "two", *flags, devices=2))
        assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert_same_as_one(tmp_path, constant, "--config.num_steps=4")


def assert_same_as_one(tmp_path, *flags):
    """The records of the run of two processes are those of a run of this one."""
    assert main(["jacreg-train", *FLAGS, f"--workdir={tmp_path / 'one'}", *flags]) == 0
    two, one = read_records(tmp_path / "two"), read_records(tmp_path / "one")
    assert [record["step"] for record in two] == [1, 2, 3, 4]
    for got, want in zip(two, one, strict=True):
        for name in want:
            if name.startswith(("train/", "test/")):
                np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_stop_reaches_both_and_the_checkpoint_goes_on_in_one(tmp_path):
    """SIGTERM to the second process alone; then one process resumes what two began."""
    constant = "--config.optimizer.schedule=constant"  # whose run may get another length
    processes = start_two(tmp_path, constant, "--config.num_steps=100000")
    lines = tmp_path / "metrics.jsonl"
    for _ in range(600):
        if lines.exists() and lines.stat().st_size:
            break
        time.sleep(0.2)
    processes[1].send_signal(signal.SIGTERM)
    first, second = finish(processes)
    assert (first[0], second[0]) == (143, 143), first[2] + second[2]
    last = json.loads(lines.read_text().splitlines()[-1])["step"]
    assert main(["jacreg-train", *FLAGS, constant, f"--workdir={tmp_path}", f"--config.num_steps={last + 2}"]) == 0
    assert [record["step"] for record in read_records(tmp_path)] == list(range(1, last + 3))


# Reads checkpoints as ever, but in the second process the second one is never whole.
UNREADABLE_IN_ONE = """
import jax
from jacreg_train import main
from jacreg_train.training.checkpoints import Checkpoints

restore = Checkpoints._restore_whole

def restore_or_fail(self, step, like):
    restored = restore(self, step, like)
    if step == 2 and jax.process_index() == 1:
        raise OSError("Input/output error")
    return restored

Checkpoints._restore_whole = restore_or_fail
main.run()
"""


def test_damaged_checkpoints_are_passed_over_by_both(tmp_path):
    """The newest is damaged on the disk, the one before it is unreadable in one process: both take the first."""
    checkpoints = ("--config.checkpoint.every_steps=1", "--config.checkpoint.keep_latest=3", "--config.num_steps=3")
    assert main(["jacreg-train", *FLAGS, *checkpoints, f"--workdir={tmp_path}"]) == 0
    before = read_records(tmp_path)
    newest = tmp_path / "checkpoints" / "3"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(byte ^ 0xFF for byte in largest.read_bytes()))
    first, second = finish(start_two(tmp_path, *checkpoints, program=("-c", UNREADABLE_IN_ONE)))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "resuming" in first[1]
    assert "after step 1\n" in first[1]
    assert "checkpoint 3 is damaged" in first[2]
    assert "checkpoint 2 is damaged (another process cannot read it); going on from checkpoint 1" in first[2]
    assert sorted(path.name for path in (tmp_path / "damaged_checkpoints").iterdir()) == ["2", "3"]
    after = read_records(tmp_path)
    assert [record["step"] for record in after] == [1, 2, 3]
    for got, want in zip(after, before, strict=True):  # had one begun elsewhere, their steps would not fit together
        for name in want:
            if name.startswith(("train/", "test/")):
                np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


# Twenty milliseconds of work a step; the second checkpoint takes the second process seconds to write.
SLOW_IN_ONE = """
import time
import jax
import orbax.checkpoint as ocp
from jacreg_train import main
from jacreg_train.training import loop

agree, write, calls = loop.largest_of_all, ocp.CheckpointManager._wait_for_checkpointers, []

def work(number):
    time.sleep(0.02)
    return agree(number)

def write_slowly(self):
    calls.append(None)
    if len(calls) == 2 and jax.process_index() == 1:
        time.sleep(2.5)
    return write(self)

loop.largest_of_all, ocp.CheckpointManager._wait_for_checkpointers = work, write_slowly
main.run()
"""


@pytest.mark.slow
def test_a_slow_disk_of_one_process_holds_up_no_step(tmp_path):
    flags = ("--config.checkpoint.every_steps=20", "--config.num_steps=240")
    first, second = finish(start_two(tmp_path, *flags, program=("-c", SLOW_IN_ONE)))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "is slow: checkpoint" in first[2]
    stamps = [record["wall_time_s"] for record in read_records(tmp_path)]
    assert len(stamps) == 240
    assert max(np.diff(stamps[3:])) < 1


MEET = """
import jax
from jacreg_train.training.processes import connect
connect(coordinator_address=None, num_processes=None, process_id=None, distributed=True)
print(jax.process_index(), jax.process_count())
"""


def test_a_cluster_is_known_by_its_environment():
    """The variables that SLURM sets in each task of a step; the port is JAX's own setting."""
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    settings = os.environ | step | {"JAX_COORDINATOR_PORT": str(free_port())}
    tasks = [
        subprocess.Popen([sys.executable, "-c", MEET], env=settings | {"SLURM_PROCID": index}, stdout=subprocess.PIPE)
        for index in "01"
    ]
    assert [task.communicate(timeout=120)[0] for task in tasks] == [b"0 2\n", b"1 2\n"]


def test_no_cluster_is_one_line(monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    with pytest.raises(ConfigError, match=r"no cluster is recognised .*; give --coordinator_address"):
        connect(coordinator_address=None, num_processes=None, process_id=None, distributed=True)


def refuse():
    raise ValueError("coordinator_address should be defined.")


REFUSED = [
    ({"num_processes": 2}, "--coordinator_address is missing"),
    ({"coordinator_address": "localhost:1", "process_id": 0}, "--num_processes is missing"),
    ({"coordinator_address": "localhost:1", "num_processes": 2, "process_id": 2}, "--process_id=2: choose from 0 to 1"),
    ({"coordinator_address": "localhost:1", "num_processes": 0, "process_id": 0}, "--num_processes=0: choose 1"),
    ({"coordinator_address": "localhost", "num_processes": 2, "process_id": 0}, "choose host:port"),
    ({"distributed": True, "process_id": 0}, "--process_id=0 has no meaning with --distributed"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_flags_that_do_not_fit_together(flags, message):
    none = {"coordinator_address": None, "num_processes": None, "process_id": None, "distributed": False}
    with pytest.raises(ConfigError, match=message):
        connect(**none | flags)


def test_a_mistake_in_the_flags_is_one_line(capsys, tmp_path):
    assert main(["jacreg-train", f"--workdir={tmp_path}", "--num_processes=two"]) == 2
    assert "num_processes=two" in capsys.readouterr().err
    assert main(["jacreg-train", f"--workdir={tmp_path}", "--num_processes=2"]) == 2
    assert "--coordinator_address is missing" in capsys.readouterr().err
