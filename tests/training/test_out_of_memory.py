"""Running out of memory is answered with the flag to change: before the first step where that can be told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train.main import main
from jacreg_train.training import out_of_memory
from jacreg_train.training.errors import OutOfMemory
from jacreg_train.training.loop import train_and_evaluate
from jacreg_train.training.out_of_memory import answered_with_the_flag, way_out

EXAMPLE_CHUNK = "try --config.jacobian.estimator.example_chunk="
# (estimator's fields, batch size, weight) -> the flag
WAYS_OUT = [
    ({"name": "layerwise"}, 64, 1.0, EXAMPLE_CHUNK + "32"),
    ({"name": "layerwise", "example_chunk": 8}, 64, 1.0, EXAMPLE_CHUNK + "4"),
    ({"name": "layerwise", "example_chunk": 1}, 64, 1.0, "try --config.jacobian.estimator.output_chunk=1"),
    ({"name": "layerwise", "example_chunk": 1, "output_chunk": 1}, 64, 1.0, "try --config.batch_size=32"),
    ({"name": "exact"}, 64, 1.0, "try --config.jacobian.estimator.name=layerwise"),
    ({"name": "auto", "memory_budget_gib": 8.0}, 64, 1.0, "try --config.jacobian.estimator.memory_budget_gib=4"),
    ({"name": "layerwise"}, 64, 0.0, "try --config.batch_size=32"),
    ({"name": "layerwise"}, 1, 0.0, "try --config.mesh.model=2, on a multiple of 2 devices"),
]


@pytest.mark.parametrize(("fields", "batch_size", "weight", "flag"), WAYS_OUT, ids=lambda value: str(value)[:40])
def test_the_flag(config, fields, batch_size, weight, flag):
    config.batch_size, config.jacobian.weight = batch_size, weight
    for name, value in fields.items():
        config.jacobian.estimator[name] = value
    assert way_out(config) == flag


def test_a_failed_allocation_of_the_device(config):
    config.jacobian.estimator.name = "layerwise"
    with pytest.raises(OutOfMemory, match=r"out of memory \(RESOURCE_EXHAUSTED: .*; " + EXAMPLE_CHUNK + "2"):
        with answered_with_the_flag(config):
            jax.block_until_ready(jnp.zeros((2**46,), jnp.int8))


def test_a_failed_allocation_of_the_host(config):
    config.jacobian.estimator.name = "layerwise"
    with pytest.raises(OutOfMemory, match=r"out of memory \(.*allocate.*; " + EXAMPLE_CHUNK + "2"):
        with answered_with_the_flag(config):
            np.empty((2**46,), np.int64)
    with pytest.raises(OutOfMemory, match="out of memory; " + EXAMPLE_CHUNK + "2"):
        with answered_with_the_flag(config):
            raise MemoryError


def test_other_errors_pass(config):
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), answered_with_the_flag(config):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_in_the_middle_of_a_run(config, tmp_path):
    class Full:
        def write(self, step, metrics):
            if step == 2:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")

        def close(self):
            pass

    with pytest.raises(OutOfMemory, match="allocate 9 bytes"):
        train_and_evaluate(config, tmp_path, extra_writers=[Full()])


def test_a_step_that_cannot_fit_is_refused_in_one_line(capsys, tmp_path, monkeypatch):
    """Else the system would kill the process in mid-step."""
    monkeypatch.setattr(out_of_memory, "free_bytes", lambda: 40000)
    flags = ["--config=configs/synthetic.py", "--config.wandb.mode=disabled", "--config.compilation_cache=off"]
    flags += ["--config.dataset.synthetic.image_shape=(4,4,1)", "--config.model.name=cnn", "--config.batch_size=4"]
    flags += ["--config.model.cnn.widths=(2,)", "--config.model.cnn.strides=(2,)", "--config.log.gradient_norms=False"]
    flags += ["--config.log.penalty_share_rounds=0"]
    assert main(["jacreg-train", f"--workdir={tmp_path}", *flags]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("jacreg-train: the step needs ")
    assert last.endswith(EXAMPLE_CHUNK + "2")


def test_a_network_that_cannot_fit_is_refused_before_anything_compiles(config, tmp_path):
    config.model.cnn.widths = (1000000, 1000000)
    config.model.cnn.strides = (2, 2)
    with pytest.raises(OutOfMemory, match=r"config\.model\.cnn: .* need .*e\+05 GiB a device .* smaller network"):
        train_and_evaluate(config, tmp_path)


def test_a_run_that_was_killed_is_noticed_at_the_next_start(config, tmp_path, caplog):
    """The system kills for memory without a word; what such a run leaves is a lock's file that is not empty."""
    config.jacobian.estimator.name = "layerwise"
    told = "the run before was killed; if for memory, " + EXAMPLE_CHUNK + "2"
    (tmp_path / ".lock").write_text("x")
    train_and_evaluate(config, tmp_path)
    assert told in caplog.text
    caplog.clear()
    train_and_evaluate(config, tmp_path)
    train_and_evaluate(config, tmp_path / "new")
    assert told not in caplog.text
