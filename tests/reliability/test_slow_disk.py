"""A disk or a terminal that does not answer for seconds, under load: no step waits for it longer than a second."""

import logging
import os
import re
import signal
import subprocess
import threading
import time
from itertools import pairwise

import pytest

from jacreg_train.main import main, parse
from jacreg_train.telemetry import JsonLinesWriter, read_records
from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.loop import train_and_evaluate
from tests.reliability.command import arguments, final_state, last_step, run, start, steps, wait_until

BLOCKED_S = 2.5
STEPS = 160
FLAGS = (f"--config.num_steps={STEPS}", "--config.jacobian.estimator.name=exact", "--config.compilation_cache=off")


class Load:
    """Twenty milliseconds of work a step, and the time of each."""

    def __init__(self):
        self.times: list[float] = []

    def write(self, step, metrics):
        time.sleep(0.02)
        self.times.append(time.monotonic())

    def close(self):
        pass

    def longest_gap(self) -> float:
        return max(after - before for before, after in pairwise(self.times))


def blocks_once(monkeypatch, owner, method, on_call):
    """The given call of a method first waits for seconds, as a write to a disk that does not answer."""
    original, calls, waited = getattr(owner, method), [], []

    def slow(self, *positional):
        calls.append(None)
        if len(calls) == on_call:
            time.sleep(BLOCKED_S)
            waited.append(time.monotonic())
        return original(self, *positional)

    monkeypatch.setattr(owner, method, slow)
    return waited


WRITES = {"a record": (JsonLinesWriter, "_append", 12), "a checkpoint": (Checkpoints, "_write", 2)}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_takes_seconds_blocks_no_step(write, tmp_path, monkeypatch, caplog):
    config = parse(arguments(tmp_path, *FLAGS))[0]
    load, waited, ahead = Load(), blocks_once(monkeypatch, *WRITES[write]), []
    write_checkpoint = Checkpoints._write

    def noted(self, state, step, *rest):
        ahead.append(step - last_step(tmp_path))
        write_checkpoint(self, state, step, *rest)

    monkeypatch.setattr(Checkpoints, "_write", noted)
    with caplog.at_level(logging.WARNING):
        train_and_evaluate(config, tmp_path, extra_writers=[load])
    during = [when for when in load.times if waited[0] - BLOCKED_S < when < waited[0]]
    assert len(during) > 20  # the steps went on meanwhile
    assert load.longest_gap() < 1
    assert f"the disk under {tmp_path} is slow: checkpoint " in caplog.text
    assert [record["step"] for record in read_records(tmp_path)] == list(range(1, STEPS + 1))
    stamps = [record["wall_time_s"] for record in read_records(tmp_path)]  # of the steps, not of the writing
    assert max(after - before for before, after in pairwise(stamps)) < 1
    # A kill at any moment loses no line: those after a checkpoint are written again, those before it are there.
    assert len(ahead) > 3
    assert max(ahead) <= 0
    assert int(final_state(tmp_path, *FLAGS).step) == STEPS


def test_a_checkpoint_folder_that_cannot_be_written_blocks_no_step_and_is_told(tmp_path, capsys):
    """A file lies where the folder was: root, too, cannot write there."""
    workdir, load = tmp_path / "run", Load()

    class Spoil(Load):
        def write(self, step, metrics):
            super().write(step, metrics)
            if step == 12:
                (workdir / "checkpoints").rename(tmp_path / "elsewhere")
                (workdir / "checkpoints").write_text("")

    load = Spoil()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "jacreg_train.training.loop.train_and_evaluate.__kwdefaults__", {"argv": (), "extra_writers": [load]}
        )
        assert main(arguments(workdir, *FLAGS)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"jacreg-train: --workdir={workdir}: a checkpoint cannot be written \(.*\)", last)
    assert len(load.times) < STEPS
    assert load.longest_gap() < 1


@pytest.fixture
def frozen_disk(tmp_path):
    """A folder on a file system of its own, and a function that stops all writes to it for some seconds."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 * 2**20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        try:
            done = subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            done = False
        if not done:
            pytest.skip("making and mounting a file system is not allowed here")
    thaws = []

    def freeze():
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
        thaws.append(threading.Timer(BLOCKED_S, subprocess.run, [["fsfreeze", "--unfreeze", str(folder)]]))
        thaws[-1].start()

    yield folder, freeze
    for thaw in thaws:
        thaw.join()
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow  # 15 seconds
def test_a_disk_that_does_not_answer_blocks_no_step_and_loses_nothing(frozen_disk, tmp_path):
    folder, freeze = frozen_disk
    workdir, err_file = folder / "run", tmp_path / "err"
    flags = ("--config.optimizer.decay_steps=50", f"--config.compilation_cache={tmp_path / 'cache'}")
    flags += ("--config.log.every_steps=5",)
    with open(err_file, "w") as err:
        process = start(workdir, *flags, "--config.num_steps=1000000", stdout=subprocess.DEVNULL, stderr=err)
        wait_until(process, lambda: last_step(workdir) >= 20)
        freeze()
        frozen_at = time.time()
        time.sleep(BLOCKED_S + 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    told = err_file.read_text()
    assert process.returncode == 143, told
    assert "is slow: checkpoint" in told
    stamps = {record["step"]: record["wall_time_s"] for record in read_records(workdir)}
    assert sum(frozen_at + 0.5 < stamp < frozen_at + BLOCKED_S - 0.5 for stamp in stamps.values()) > 5
    assert max(after - before for before, after in pairwise(list(stamps.values())[3:-1])) < 1
    end = 5 * (last_step(workdir) // 5 + 2)
    code, out, err = run(workdir, *flags, f"--config.num_steps={end}")
    assert code == 0, err
    assert "resuming" in out
    assert [step for step in steps(workdir) if step % 5 == 0] == list(range(5, end + 1, 5))
