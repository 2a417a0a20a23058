"""Numbers that are none: a run stops and names them, or skips the step; extreme settings end in one of the two."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train.data import Dataset
from jacreg_train.main import main, parse
from jacreg_train.telemetry import read_records
from jacreg_train.training import setup
from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.errors import Diverged
from jacreg_train.training.loop import train_and_evaluate
from jacreg_train.training.penalty import PENALTIES, frobenius
from jacreg_train.training.programs import compile_programs
from tests.reliability.command import arguments, array_bytes, final_state

FLAGS = ("--config.jacobian.estimator.name=exact", "--config.checkpoint.every_steps=100", "--config.num_steps=8")


@pytest.fixture
def bad_on_bright_batches(monkeypatch):
    """A penalty that is nan on about half of the batches."""

    def sometimes_nan(*positional, **named):
        good = frobenius(*positional, **named)

        def penalty(apply_fn, params, inputs, key, first_example):
            value = good(apply_fn, params, inputs, key, first_example)
            return value._replace(value=value.value * jnp.where(jnp.mean(inputs) > 0, jnp.nan, 1.0))

        return penalty

    monkeypatch.setitem(PENALTIES, "frobenius", sometimes_nan)


def config_of(workdir, *flags):
    return parse(arguments(workdir, *FLAGS, *flags))[0]


def test_a_bad_step_changes_nothing_but_the_counts(tmp_path, bad_on_bright_batches):
    run = setup.build(config_of(tmp_path))
    batches, state = run.make_batches(), run.init()
    programs = compile_programs(run, state, batches.example(), share=False, norms=False)
    seen = set()
    for done in range(8):
        before = jax.tree.map(jnp.copy, state)
        state, metrics = programs.train_step(done)[1](state, *batches.next())
        ok = bool(np.isfinite(metrics["train/penalty"]))
        seen.add(ok)
        assert bool(np.all(metrics["finite"])) == ok
        assert int(state.step) == done + 1
        assert int(state.skipped) == int(before.skipped) + (not ok)
        same = array_bytes(before)[:-4] == array_bytes(state)[:-4]  # all but the step's number
        assert same != ok
    assert seen == {True, False}


def test_stop_names_the_step_the_part_and_the_array_and_skip_goes_on_from_there(
    tmp_path, bad_on_bright_batches, caplog
):
    with pytest.raises(Diverged) as caught:
        train_and_evaluate(config_of(tmp_path), tmp_path)
    message = str(caught.value)
    assert re.fullmatch(
        r"step \d+: train/penalty is nan, train/loss is nan, the gradient of params\.\S+ is not finite \(the first of"
        r" \d+ arrays\); the state before it is in checkpoint \d+",
        message,
    )
    step = int(message.split(":")[0].split()[1])
    stopped = final_state(tmp_path, *FLAGS)
    assert (int(stopped.step), int(stopped.skipped)) == (step - 1, 0)
    summary = train_and_evaluate(config_of(tmp_path, "--config.on_nonfinite=skip"), tmp_path)
    records = read_records(tmp_path)
    assert [record["step"] for record in records] == list(range(1, 9))
    bad = [record["step"] for record in records if not np.isfinite(record["train/loss"])]
    assert bad[0] == step
    assert summary["train/skipped_steps"] == len(bad) == int(final_state(tmp_path, *FLAGS).skipped)
    assert f"step {step}: train/penalty is nan" in caplog.text
    assert "the step is skipped" in caplog.text


def test_where_the_last_good_state_cannot_be_kept_that_is_told_too(tmp_path, bad_on_bright_batches, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(Checkpoints, "_write", full)
    told = (
        r"step \d+: train/penalty is nan, .*; --workdir=.*: a checkpoint cannot be written \(No space left on device\)"
    )
    with pytest.raises(Diverged, match=told):
        train_and_evaluate(config_of(tmp_path), tmp_path)


def test_a_run_that_only_skips_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("jacreg_train.training.loop.MOST_SKIPPED_IN_A_ROW", 3)
    flags = ("--config.optimizer.learning_rate=1e30", "--config.optimizer.name=sgd", "--config.on_nonfinite=skip")
    with pytest.raises(Diverged, match=r"step \d+: .* is (inf|nan)"):
        train_and_evaluate(config_of(tmp_path, *flags), tmp_path)


def constant_images(value: int):
    def load(name, *, split, data_dir=None, **options):
        def read(indices):
            image = np.full((len(indices), 4, 4, 1), value, np.uint8)
            return {"image": image, "label": np.arange(len(indices), dtype=np.int32) % 3}

        return Dataset("constant", 16, (4, 4, 1), 3, read)

    return load


EXTREMES = {
    "no weight": ["--config.jacobian.weight=0"],
    "a weight of 1e6": ["--config.jacobian.weight=1e6"],
    "a weight of 1e30": ["--config.jacobian.weight=1e30"],
    "a learning rate of 1e30": ["--config.optimizer.learning_rate=1e30"],
    "a single class": ["--config.dataset.synthetic.num_classes=1"],
    "a batch of one": ["--config.batch_size=1", "--config.model.cnn.norm=batch"],
    "black images": ["--config.model.cnn.norm=group"],
    "white images": ["--config.model.cnn.norm=batch"],
}


@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_settings_train_on_finite_numbers_or_stop_with_their_name(case, tmp_path, capsys, monkeypatch):
    if "images" in case:
        load = constant_images(0 if case == "black images" else 255)
        monkeypatch.setattr(setup, "load_dataset", load)
    code = main([*arguments(tmp_path, *FLAGS, *EXTREMES[case]), "--config.compilation_cache=off"])
    err = capsys.readouterr().err
    assert code == 0 or (code == 1 and "e30" in str(EXTREMES[case]))
    if code:
        assert re.match(r"jacreg-train: step \d+: .*; the state before it is in checkpoint \d+\n$", err)
        with Checkpoints(tmp_path, keep_latest=2, keep_best=1) as checkpoints:
            config, _, _ = parse(arguments(tmp_path, *FLAGS, *EXTREMES[case]))
            restored = checkpoints.restore_latest(setup.build(config).init())
        assert restored is not None
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((restored[0].params, restored[0].opt_state)))
    else:
        for record in read_records(tmp_path):
            assert all(np.isfinite(value) for value in record.values())
