"""The W&B engine: what it registers, and that an agent's trial is an ordinary run."""

import json
import subprocess
import sys

import pytest
import wandb

from jacreg_train.experiments import sweep_wandb
from jacreg_train.experiments.sweep_file import SweepError, parse_sweep

CONTENT = {
    "method": "bayes",
    "metric": {"name": "test/accuracy", "goal": "maximize"},
    "parameters": {"jacobian": {"parameters": {"weight": {"min": 0.0, "max": 1.0}}}},
    "project": "mine",
    "run_cap": 5,
}


def test_registers_once_and_starts_an_agent(tmp_path, monkeypatch):
    registered, agents = [], []

    def register(sweep, project):
        registered.append((sweep, project))
        return "id7"

    def start(command):
        agents.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(wandb, "login", lambda **_: True)
    monkeypatch.setattr(wandb, "sweep", register)
    monkeypatch.setattr(subprocess, "run", start)
    for _ in range(2):
        sweep_wandb.run_agent(parse_sweep(CONTENT, "mine"), tmp_path, base_flags=["--config.seed=1"], num_trials=3)
    ((sweep, project),) = registered
    assert project == "mine"
    assert sweep["parameters"] == CONTENT["parameters"]
    assert sweep["command"][-1] == "${args_json_file}"
    assert agents[0][1:] == ["-m", "wandb", "agent", "--project", "mine", "--count", "3", "id7"]
    assert agents[0] == agents[1]


def test_a_trial_is_an_ordinary_run(tmp_path):
    (tmp_path / "wandb_job.json").write_text(json.dumps({"flags": ["--config=a.py"], "project": "p", "id": "i"}))
    parameters = {"jacobian": {"weight": 0.5, "estimator": {"name": "exact"}}, "config.seed": 3}
    assert sweep_wandb.run_command(tmp_path, parameters, "run5") == [
        *(sys.executable, "-m", "jacreg_train.main", "--config=a.py"),
        *("--config.jacobian.weight=0.5", "--config.jacobian.estimator.name=exact", "--config.seed=3"),
        *("--config.wandb.mode=online", f"--workdir={tmp_path}/trials/run5"),
    ]


def test_needs_a_login(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    with pytest.raises(SweepError, match="needs a login: run `wandb login`"):
        sweep_wandb.run_agent(parse_sweep(CONTENT), tmp_path)
