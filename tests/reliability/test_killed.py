"""kill -9 at any moment, then the same command again: the end is that of an uninterrupted run, to the bit."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest

from jacreg_train.data import load_dataset
from tests.reliability.command import array_bytes, final_state, kill_when, last_step, run, start, steps

pytestmark = pytest.mark.xdist_group("killed")  # in one worker, that its fixtures are made once
STEPS = 60
FLAGS = (f"--config.num_steps={STEPS}", "--config.evaluation.every_steps=10", "--config.jacobian.estimator.name=exact")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a run that nobody kills; its compiled programs serve the others."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    code, _, err = run(workdir, *FLAGS)
    assert code == 0, err
    return workdir


def assert_same_end(workdir, uninterrupted):
    assert array_bytes(final_state(workdir, *FLAGS)) == array_bytes(final_state(uninterrupted, *FLAGS))
    assert steps(workdir) == list(range(1, STEPS + 1))


def moments(workdir):
    """Moments of a run, in order, by what can be seen of it from outside."""
    writing = lambda: any(
        "tmp" in path.name or (path.name.isdigit() and int(path.name) > 5)
        for path in (workdir / "checkpoints").glob("*")
    )
    return {
        "start": lambda: (workdir / ".lock").exists(),  # then it sets up, and compiles
        "step": lambda: last_step(workdir) >= 7,
        "checkpoint": writing,
        "evaluation": lambda: last_step(workdir) >= 29,  # it evaluates after step 30
    }


def test_killed_at_four_moments(uninterrupted):
    workdir = uninterrupted.parent / "killed"
    for happened in moments(workdir).values():
        assert kill_when(start(workdir, *FLAGS), happened) == -9
    code, out, err = run(workdir, *FLAGS)
    assert code == 0, err
    assert "resuming" in out
    assert_same_end(workdir, uninterrupted)


def test_killed_while_data_are_prepared(tmp_path):
    code = "import sys; from jacreg_train import data; data.load_dataset('digits', split='train', data_dir=sys.argv[1])"
    data_dir, killed = tmp_path / "killed", []
    for number_of_files in (1, 3):
        process = subprocess.Popen([sys.executable, "-c", code, str(data_dir)], stdout=subprocess.PIPE)
        killed.append(kill_when(process, has_files(data_dir, number_of_files)))
    assert -9 in killed
    read = lambda folder: load_dataset("digits", split="train", data_dir=folder).read(np.arange(100))
    whole, after = read(tmp_path / "whole"), read(data_dir)
    for name in ("image", "label"):
        np.testing.assert_array_equal(whole[name], after[name])


def has_files(folder, least):
    return lambda: sum(path.is_file() for path in folder.rglob("*")) >= least


def after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.mark.slow  # 10 minutes or more on a busy machine
def test_killed_at_twenty_random_moments(uninterrupted):
    workdir, moment = uninterrupted.parent / "random", random.Random(0)
    begin = time.monotonic()
    assert run(uninterrupted.parent / "timed", *FLAGS)[0] == 0
    length = time.monotonic() - begin
    killed = 0
    while killed < 20:
        code = kill_when(start(workdir, *FLAGS), after(moment.uniform(0, length)))
        killed += code == -9
        if code == 0:  # it was done before the kill: the next ones are of a new run
            assert_same_end(workdir, uninterrupted)
            workdir = workdir.with_name(f"random_{killed}")
    assert run(workdir, *FLAGS)[0] == 0
    assert_same_end(workdir, uninterrupted)
