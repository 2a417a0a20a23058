"""`auto` in a run: chosen once, told in the log and the run's folder, kept when the run goes on."""

import json
import sys
from typing import Any

import pytest

from jacreg_train import jacobian
from jacreg_train.training import estimator_choice
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.estimator_choice import CHOICE_FILE, as_config, choose_estimator
from jacreg_train.training.loop import train_and_evaluate
from jacreg_train.training.setup import build
from jacreg_train.training.validation import validate

auto: Any = sys.modules[jacobian.choose.__module__]


@pytest.fixture
def config(config, monkeypatch):
    monkeypatch.setattr(auto, "TINY", 0)  # so that a tiny run is measured
    config.jacobian.estimator.name = "auto"
    return config


def test_the_choice_is_told_recorded_and_kept(config, tmp_path, capsys, monkeypatch):
    asked: list[dict] = []
    choose = jacobian.choose

    def counted(*args, **options):
        asked.append(options)
        return choose(*args, **options)

    monkeypatch.setattr(jacobian, "choose", counted)
    families = [("layerwise", {}, [None, 2]), ("chunked", {"output_chunk": 1}, [None])]
    monkeypatch.setattr(auto, "_families", lambda *_: iter(families))
    config.num_steps = 2
    config.optimizer.schedule = "constant"  # whose run may get longer
    config.jacobian.estimator.memory_budget_gib = 1.0
    train_and_evaluate(config, tmp_path)
    assert asked == [{"wrt": "params", "memory_budget_gib": 1.0, "allow_stochastic": False}]
    table = capsys.readouterr().out
    head, *rows = (json.loads(line) for line in (tmp_path / CHOICE_FILE).read_text().splitlines())
    assert f"auto: {head['estimator']}" in table
    assert [row["estimator"] for row in rows] == ["layerwise", "layerwise", "chunked"]
    assert sum(row["verdict"] == "chosen" for row in rows) == 1
    assert all(row["verdict"] in table for row in rows)

    config.num_steps = 3
    train_and_evaluate(config, tmp_path)  # goes on with what it has
    assert len(asked) == 1
    assert f"auto: {head['estimator']}" in capsys.readouterr().out

    recorded = choose_estimator(config, build(config), tmp_path)
    assert as_config(recorded)["estimator_choice"]["candidates"] == rows
    config.jacobian.estimator.memory_budget_gib = 2.0  # another problem
    choose_estimator(config, build(config), tmp_path)
    assert len(asked) == 2
    (tmp_path / CHOICE_FILE).write_text("no choice\n")
    choose_estimator(config, build(config), tmp_path)
    assert len(asked) == 3


def test_other_estimators_need_no_choice(config, tmp_path):
    config.jacobian.estimator.name = "layerwise"
    assert choose_estimator(config, build(config), tmp_path) is None
    assert as_config(None) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_budget_that_nothing_fits_is_a_mistake_in_the_config(config, tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "_families", lambda *_: iter([("layerwise", {}, [1])]))
    config.jacobian.estimator.memory_budget_gib = 1e-9
    with pytest.raises(ConfigError, match=r"config\.jacobian\.estimator: memory_budget_gib=1e-09: no estimator fits"):
        choose_estimator(config, build(config), tmp_path)


def test_only_for_the_penalty_that_is_measured(config):
    config.jacobian.penalty = "row_norm"
    with pytest.raises(ConfigError, match=r"name = 'auto' has no meaning with config\.jacobian\.penalty = 'row_norm'"):
        validate(config, num_devices=1)


def test_the_config_it_resolves_to(config):
    config.jacobian.estimator.memory_budget_gib = 1.0
    choice = jacobian.Choice("layerwise", {"example_chunk": 2}, 1.0, ())
    resolved = estimator_choice.with_choice(config, choice).jacobian.estimator
    assert (resolved.name, resolved.example_chunk, resolved.memory_budget_gib) == ("layerwise", 2, None)
    assert config.jacobian.estimator.name == "auto"
