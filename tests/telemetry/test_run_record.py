import json

import pytest

from jacreg_train.telemetry import describe_run, read_config, read_run_record, redact, write_run_record

ARGV = ["jacreg-train", "--config=a.py", "--config.model.name=cnn two"]


def test_what_a_workdir_holds(tmp_path):
    write_run_record(tmp_path / "run", {"seed": 1, "model": {"widths": (8, 16)}, "clip": None}, ARGV)
    assert read_config(tmp_path / "run") == {"seed": 1, "model": {"widths": [8, 16]}, "clip": None}
    record = read_run_record(tmp_path / "run")
    assert record["command"] == "jacreg-train --config=a.py '--config.model.name=cnn two'"
    assert record["argv"] == ARGV
    assert record["versions"].keys() >= {"jax", "numpy", "flax"}
    assert record["device"]["platform"] == "cpu"
    assert record.keys() >= {"git_revision", "git_changed", "started", "python"}


def test_a_resume_is_added_to_the_first_start(tmp_path):
    write_run_record(tmp_path, {"num_steps": 5}, ["first"])
    for _ in range(2):
        write_run_record(tmp_path, {"num_steps": 9}, ["again"])
    record = read_run_record(tmp_path)
    assert record["command"] == "first"
    assert [each["command"] for each in record["resumed"]] == ["again", "again"]
    assert read_config(tmp_path) == {"num_steps": 9}


@pytest.mark.parametrize("damage", ["", "{", "[1]"])
def test_a_damaged_record_is_written_anew(tmp_path, damage):
    (tmp_path / "run.json").write_text(damage)
    write_run_record(tmp_path, {}, ["start"])
    assert json.loads((tmp_path / "run.json").read_text())["command"] == "start"


def test_a_config_that_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError):
        write_run_record(tmp_path, {"f": print}, ["a"])


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--wandb_api_key=abc"], ["--wandb_api_key=[redacted]"]),
        (["--config.wandb.api_key", "abc"], ["--config.wandb.api_key", "[redacted]"]),
        (["WANDB_API_KEY=abc"], ["WANDB_API_KEY=[redacted]"]),
        (["--storage=postgresql://me:pw@host/db"], ["--storage=postgresql://[redacted]@host/db"]),
        (["--note=key-in-environment"], ["--note=[redacted]"]),
        (["--num_tokens=5", "--config.key=3", "a=b"], ["--num_tokens=5", "--config.key=3", "a=b"]),
    ],
)
def test_secrets_on_the_command_line(monkeypatch, argv, expected):
    monkeypatch.setenv("SOME_API_KEY", "key-in-environment")
    assert describe_run(argv)["argv"] == expected


def test_secrets_in_a_config(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    config = {
        "a": {"password": "x", "token": "y", "note": "is 0123456789abcdef"},
        "tags": ["0123456789abcdef"],
    }
    write_run_record(tmp_path, config, ["a", "0123456789abcdef"])
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "0123456789abcdef" not in text
    assert read_config(tmp_path)["a"] == {
        "password": "[redacted]",
        "token": "[redacted]",
        "note": "is [redacted]",
    }


def test_redacting_keeps_everything_else():
    value = {"weight": 1e-3, "names": ("a", "b"), "none": None, "on": True, "password": None}
    assert redact(value) == {**value, "names": ["a", "b"]}
