"""The disk fails: damaged checkpoints, a full or read-only file system, a folder that goes away."""

import logging
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train.main import main
from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.state import TrainState
from jacreg_train.training.workdir import locked
from tests.reliability.command import arguments, last_step, run, start, steps, wait_until

ENDLESS = "--config.num_steps=1000000"


def state(step: int) -> TrainState:
    params = {"kernel": jax.random.normal(jax.random.key(step), (40, 20))}
    return TrainState(jnp.int32(step), params, {}, (params, {}), jax.random.key(step), jnp.int32(0))


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("two")
    with Checkpoints(workdir, keep_latest=2, keep_best=0) as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step), step=step, position={"at": step}, config={}, accuracy=None)
    return workdir


def restored(workdir: Path):
    with Checkpoints(workdir, keep_latest=2, keep_best=0) as checkpoints:
        return checkpoints.restore_latest(state(0))


def damage(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "a bit flipped" and content:
        content[len(content) // 2] ^= 0x40
        path.write_bytes(content)


@pytest.mark.parametrize("kind", ["truncated", "a bit flipped"])
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_it_used(two_checkpoints, tmp_path, caplog, kind):
    files = [path for path in (two_checkpoints / "checkpoints" / "2").rglob("*") if path.is_file()]
    used = []
    for number, path in enumerate(files):
        workdir = tmp_path / str(number)
        shutil.copytree(two_checkpoints, workdir)
        damage(workdir / path.relative_to(two_checkpoints), kind)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            after, position = restored(workdir)
        used.append(int(after.step))
        np.testing.assert_array_equal(after.params["kernel"], state(used[-1]).params["kernel"])
        assert position == {"at": used[-1]}
        told = [record for record in caplog.messages if "checkpoint 2 is damaged" in record]
        assert len(told) == (used[-1] == 1)
        assert (workdir / "damaged_checkpoints" / "2").exists() == (used[-1] == 1)
        assert (workdir / "checkpoints" / "2").exists() == (used[-1] == 2)
    assert used.count(1) >= 5  # the files that matter; others repeat what is known


def test_the_largest_file_matters(two_checkpoints, tmp_path):
    """The arrays: the format has no checksum of its own for them."""
    workdir = tmp_path / "run"
    shutil.copytree(two_checkpoints, workdir)
    files = (path for path in (workdir / "checkpoints" / "2").rglob("*") if path.is_file())
    damage(max(files, key=lambda path: path.stat().st_size), "a bit flipped")
    assert int(restored(workdir)[0].step) == 1


def test_where_every_checkpoint_is_damaged_nothing_is_started_anew(two_checkpoints, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(two_checkpoints, workdir)
    for step in ("1", "2"):
        damage(workdir / "checkpoints" / step / "meta" / "metadata", "truncated")
    with pytest.raises(ConfigError, match="no checkpoint of 2, 1 is whole") as caught:
        restored(workdir)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["1", "2"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_run_on_one_line_and_the_same_command_goes_on(small_disk, tmp_path):
    workdir, cache = small_disk / "run", f"--config.compilation_cache={tmp_path / 'cache'}"
    process = start(workdir, ENDLESS, "--config.optimizer.decay_steps=50", cache)

    def filled() -> bool:
        if last_step(workdir) < 12:
            return False
        try:
            with open(small_disk / "filler", "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError:
            return True
        return True

    wait_until(process, filled)
    _, err = process.communicate(timeout=240)  # it ends by itself
    assert process.returncode == 1
    assert "Traceback" not in err
    (told,) = [line for line in err.splitlines() if line.startswith("jacreg-train: ")]
    assert re.match(rf"jacreg-train: --workdir={workdir}: .*cannot be written \(.*", told)
    before = last_step(workdir)
    (small_disk / "filler").unlink()
    code, out, err = run(workdir, f"--config.num_steps={before + 20}", "--config.optimizer.decay_steps=50", cache)
    assert code == 0, err
    assert "resuming" in out
    assert steps(workdir) == list(range(1, before + 21))


def test_a_folder_that_goes_away_stops_the_run_and_is_not_made_anew(tmp_path):
    workdir = tmp_path / "run"
    process = start(workdir, ENDLESS, "--config.compilation_cache=off")
    wait_until(process, lambda: last_step(workdir) >= 7)
    workdir.rename(tmp_path / "moved")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    # a write under way may be what notices it
    told = "(the folder was removed or replaced during the run|a checkpoint cannot be written .*)"
    assert re.fullmatch(f"jacreg-train: --workdir={workdir}: {told}", err.splitlines()[-1])
    assert not (workdir / "metrics.jsonl").exists()


def refusal(capsys, workdir: Path, *flags: str) -> str:
    assert main(arguments(workdir, "--config.compilation_cache=off", *flags)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_a_read_only_workdir_is_refused(capsys, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert f"--workdir={small_disk / 'run'}: cannot be written" in refusal(capsys, small_disk / "run")


def test_the_second_run_on_one_workdir_is_refused_while_the_first_lives(capsys, tmp_path):
    with locked(tmp_path):
        assert "another run is writing to it" in refusal(capsys, tmp_path)


def test_a_damaged_line_in_the_record_or_a_damaged_config_is_told(capsys, tmp_path):
    flags = ("--config.num_steps=2", "--config.compilation_cache=off")
    assert main(arguments(tmp_path, *flags)) == 0
    capsys.readouterr()
    record, config = tmp_path / "metrics.jsonl", tmp_path / "config.json"
    damaged = "nonsense\n" + record.read_text()
    record.write_text(damaged)
    assert f"{record}, line 1: not a metric record" in refusal(capsys, tmp_path, *flags)
    assert record.read_text() == damaged
    config.write_text("{")
    assert "config.json is damaged" in refusal(capsys, tmp_path, *flags)
    assert config.read_text() == "{"


IN_THE_WAY = {
    "checkpoints": ("checkpoints cannot be written", 2),
    ".lock": ("cannot be written", 2),
    "config.json": ("config.json is damaged", 2),
    "run.json": ("the run's record cannot be written", 1),
    "metrics.jsonl": ("the metrics cannot be written", 1),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_is_in_the_way_in_the_folder_is_told_on_one_line(name, capsys, tmp_path):
    told, code = IN_THE_WAY[name]
    if name == "checkpoints":
        (tmp_path / name).write_text("")
    else:
        (tmp_path / name).mkdir()
    assert main(arguments(tmp_path, "--config.compilation_cache=off")) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"--workdir={tmp_path}: " in err
    assert told in err


def test_a_path_that_would_break_checkpoints_is_refused(capsys, tmp_path):
    """Orbax looks for a checkpoint's parts by a pattern that the whole path is in."""
    workdir = tmp_path / "seed[1]"
    assert f"--workdir={workdir}: " in refusal(capsys, workdir)
    assert not workdir.exists()
