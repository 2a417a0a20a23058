import subprocess
import sys

import pytest

from jacreg_train.telemetry import write_run_record
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.workdir import check_same_config, locked

CONFIG = {"num_steps": 5, "seed": 0, "log": {"every_steps": 1}, "model": {"widths": (2, 3), "name": "cnn"}}


def changed(**fields):
    return CONFIG | fields


def test_the_same_config_and_free_fields_are_accepted(tmp_path):
    check_same_config(tmp_path, CONFIG)
    write_run_record(tmp_path, CONFIG, ["jacreg-train"])
    check_same_config(tmp_path, CONFIG)
    check_same_config(tmp_path, changed(num_steps=10, log={"every_steps": 7}))


def test_another_config_is_refused_with_every_differing_field(tmp_path):
    write_run_record(tmp_path, CONFIG, ["jacreg-train"])
    with pytest.raises(ConfigError) as caught:
        check_same_config(tmp_path, changed(seed=1, model={"widths": (2, 4), "name": "cnn"}))
    message = str(caught.value)
    assert "seed: 0 there, 1 here" in message
    assert "model.widths: [2, 3] there, [2, 4] here" in message
    assert "name" not in message.replace(str(tmp_path), "")


def test_what_depends_on_the_length_must_not_change(tmp_path):
    write_run_record(tmp_path, CONFIG, ["jacreg-train"])
    derived = lambda config: {"optimizer.decay_steps": config["num_steps"]}
    with pytest.raises(ConfigError, match=r"optimizer\.decay_steps: 5 there, 10 here"):
        check_same_config(tmp_path, changed(num_steps=10), derived)


def test_one_run_at_a_time(tmp_path):
    with locked(tmp_path) as lock, pytest.raises(ConfigError, match="another run"), locked(tmp_path):
        pass
    assert not lock.after_a_kill
    with pytest.raises(ValueError, match="a failure"), locked(tmp_path):
        raise ValueError("a failure")
    with locked(tmp_path) as lock:
        assert not lock.after_a_kill


def test_the_lock_of_a_dead_process_is_no_obstacle(tmp_path):
    code = (
        "import os, pathlib, sys; from jacreg_train.training.workdir import locked\n"
        f"with locked(pathlib.Path({str(tmp_path)!r})): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    with locked(tmp_path) as lock:
        assert lock.after_a_kill


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"), locked(tmp_path / "file" / "run"):
        pass
