"""Ctrl-C: an orderly stop; and nothing that a run leaves behind holds a secret."""

import signal

import pytest

from tests.reliability.command import environment, kill_when, last_step, start

pytestmark = pytest.mark.xdist_group("stopped")  # in one worker, that its fixtures are made once
SECRET = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with W&B's offline record and a key in the environment, stopped by Ctrl-C; code, output, folder."""
    workdir = tmp_path_factory.mktemp("stopped") / "run"
    flags = ("--config.num_steps=1000000", "--config.wandb.mode=offline", f"--config.wandb.tags=key={SECRET}")
    env = environment(WANDB_API_KEY=SECRET, WANDB_SILENT="true")
    with open(workdir.with_suffix(".out"), "w") as out:
        process = start(workdir, *flags, env=env, stdout=out, stderr=out)
        code = kill_when(process, lambda: last_step(workdir) >= 6, signal.SIGINT)
    return code, workdir.with_suffix(".out").read_text(), workdir


def test_ctrl_c_is_an_orderly_stop_with_a_checkpoint(stopped):
    code, out, workdir = stopped
    assert code == 130
    last = out.splitlines()[-1]
    step = last_step(workdir)
    assert f"stopped by SIGINT after step {step}; checkpoint written; the same command goes on from there" in last
    assert (workdir / "checkpoints" / str(step)).is_dir()
    assert "Traceback" not in out


def test_no_secret_is_left_in_any_file_or_in_the_output(stopped):
    _, out, workdir = stopped
    assert SECRET not in out
    files = [path for path in workdir.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
