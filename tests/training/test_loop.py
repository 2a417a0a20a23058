"""Whole runs on tiny made-up data: records, resuming, stopping, refusals."""

import dataclasses
import os
import signal
import time

import jax
import numpy as np
import pytest

from jacreg_train.telemetry import read_records
from jacreg_train.training.batches import Batches
from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.errors import ConfigError, Diverged, Interrupted
from jacreg_train.training.loop import train_and_evaluate
from jacreg_train.training.setup import build
from models import make_model


class Recorder:
    """A writer that keeps the records, and calls a function at a step."""

    def __init__(self, at_step=None, action=None):
        self.records, self.at_step, self.action = [], at_step, action

    def write(self, step, metrics):
        self.records.append((step, dict(metrics)))
        if step == self.at_step:
            self.action()

    def close(self):
        self.records.append("closed")


def send_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)  # a thread takes the signal


def final_state(config, workdir):
    """The newest checkpoint's state and data position."""
    with Checkpoints(workdir, keep_latest=1, keep_best=0) as checkpoints:
        return checkpoints.restore_latest(build(config).init())


def assert_same_bits(one, two):
    leaves = lambda state: jax.tree.leaves((state.params, state.opt_state, state.model_state, state.step))
    for a, b in zip(leaves(one), leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_is_recorded_and_summarised(config, tmp_path):
    config.log.gradient_norms = True
    config.log.penalty_share_rounds = 1
    config.log.penalty_share_every_steps = 2
    config.evaluation.every_steps = 2
    recorder = Recorder()
    summary = train_and_evaluate(config, tmp_path, extra_writers=[recorder])
    records = read_records(tmp_path)
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert [step for step, _ in recorder.records[:-1]] == [1, 2, 3, 4]
    assert recorder.records[-1] == "closed"
    always = {
        "train/loss",
        "train/task_loss",
        "train/penalty",
        "train/penalty_standard_error",
        "train/accuracy",
        "train/task_grad_norm",
        "train/penalty_grad_norm",
        "train/learning_rate",
        "train/epoch",
        "time/data_ms",
        "time/compile_s",
        "memory/resident_gib",
    }
    for record in records:
        assert always <= set(record)
        assert all(np.isfinite(value) for value in record.values())
    test_metrics = {"test/accuracy", "test/nll", "test/ece", "test/squared_jacobian_norm"}
    assert [test_metrics <= set(record) for record in records] == [False, True, False, True]
    assert "time/step_ms" not in records[0]  # the first call of a program warms up
    assert "time/step_ms" in records[1]
    assert ["time/penalty_share" in record for record in records] == [True, False, True, False]
    assert "memory/compiled_gib" in records[0]
    assert records[3]["train/epoch"] == pytest.approx(1.6)
    assert summary["step"] == 4
    assert summary["test/accuracy"] == records[3]["test/accuracy"]


@pytest.mark.parametrize("model", ["plain", "random and joint"])
def test_ten_steps_are_five_stopped_and_five_more_to_the_bit(config, tmp_path, model):
    config.num_steps = 10
    config.log.every_steps = 5
    if model == "random and joint":
        config.model.cnn.norm, config.model.cnn.dropout_rate = "batch", 0.5
        config.dataset.augmentation = "crop_flip"
        config.jacobian.points, config.jacobian.context.name = "context", "synthetic"
        config.jacobian.estimator.name = "stochastic"
    train_and_evaluate(config, tmp_path / "whole")
    stop = Recorder(5, send_sigterm)
    with pytest.raises(Interrupted) as stopped:
        train_and_evaluate(config, tmp_path / "parts", extra_writers=[stop])
    assert stopped.value.exit_code == 143
    config.log.every_steps = 1  # how often a run logs does not change its numbers
    train_and_evaluate(config, tmp_path / "parts")
    (whole, position), (parts, parts_position) = (final_state(config, tmp_path / p) for p in ("whole", "parts"))
    assert position == parts_position
    assert int(parts.step) == 10
    assert_same_bits(whole, parts)
    steps = [record["step"] for record in read_records(tmp_path / "parts")]
    assert steps == [5, *range(stopped.value.step + 1, 11)]
    last, parts_last = (read_records(tmp_path / p)[-1] for p in ("whole", "parts"))
    for name in ("train/loss", "test/nll", "test/squared_jacobian_norm", "train/epoch", "train/learning_rate"):
        assert last[name] == parts_last[name]


def test_the_next_batch_is_read_while_the_step_runs(config, tmp_path, monkeypatch):
    events = []
    wait, read_ahead = jax.block_until_ready, Batches.read_ahead
    monkeypatch.setattr(jax, "block_until_ready", lambda results: (events.append("waits"), wait(results))[1])
    monkeypatch.setattr(Batches, "read_ahead", lambda self: (events.append("reads"), read_ahead(self))[1])
    train_and_evaluate(config, tmp_path)
    assert events == ["reads", "waits"] * config.num_steps


def test_a_finished_run_is_left_as_it_is(config, tmp_path):
    first = train_and_evaluate(config, tmp_path)
    record = (tmp_path / "metrics.jsonl").read_bytes()
    assert train_and_evaluate(config, tmp_path) == first
    assert (tmp_path / "metrics.jsonl").read_bytes() == record


def test_a_run_can_get_longer_where_its_schedule_does_not_depend_on_the_length(config, tmp_path):
    config.num_steps = 2
    train_and_evaluate(config, tmp_path)
    config.num_steps = 3
    with pytest.raises(ConfigError, match=r"optimizer\.decay_steps: 2 there, 3 here"):
        train_and_evaluate(config, tmp_path)
    config.optimizer.decay_steps = 2
    assert train_and_evaluate(config, tmp_path)["step"] == 3


def test_a_workdir_of_another_config_is_refused_before_anything_is_written(config, tmp_path):
    config.num_steps = 1
    train_and_evaluate(config, tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    config.seed = 1
    with pytest.raises(ConfigError, match="seed: 0 there, 1 here"):
        train_and_evaluate(config, tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(config, tmp_path):
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 1e30
    config.checkpoint.every_steps = 1
    config.num_steps = 20
    with pytest.raises(Diverged, match=r"step \d+: train/(task_loss|penalty) is (nan|inf)"):
        train_and_evaluate(config, tmp_path)
    state, _ = final_state(config, tmp_path)
    assert int(state.step) >= 1


def test_the_penalty_is_taken_every_k_th_step(config, tmp_path):
    config.jacobian.every_steps = 2
    train_and_evaluate(config, tmp_path)
    assert ["train/penalty" in record for record in read_records(tmp_path)] == [True, False, True, False]


def test_without_weight_there_is_no_penalty_but_the_norm_is_evaluated(config, tmp_path):
    config.jacobian.weight = 0.0
    config.log.gradient_norms, config.log.penalty_share_rounds = True, 1
    summary = train_and_evaluate(config, tmp_path)
    assert not [name for name in summary if "penalty" in name]
    assert summary["test/squared_jacobian_norm"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 11}, "has only 10 examples"),
        ({"model.cnn.strides": (2, 2)}, "config.model.cnn"),
        ({"jacobian.estimator.num_probes": 2}, "config.jacobian.estimator: num_probes=2"),
        ({"dataset.synthetic.image_shape": (4, 4)}, "image_shape"),
    ],
)
def test_parts_that_do_not_fit_are_refused_without_a_workdir(config, tmp_path, change, message):
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=message) as caught:
        train_and_evaluate(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_couples_examples_in_evaluation_is_refused(config, tmp_path, monkeypatch):
    def coupled(*arguments, **named):
        model = make_model(*arguments, **named)

        def apply(params, state, inputs, **mode):
            logits, state = model.apply(params, state, inputs, **mode)
            return logits - logits.mean(0), state

        return dataclasses.replace(model, apply=apply)

    monkeypatch.setattr("jacreg_train.training.setup.make_model", coupled)
    with pytest.raises(ConfigError, match=r"config\.model\.cnn: .*joint"):
        train_and_evaluate(config, tmp_path)
