"""Every penalty against the dense Jacobian, and in short runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train.main import main
from jacreg_train.telemetry import read_records
from jacreg_train.training.errors import ConfigError
from jacreg_train.training.penalty import PENALTIES
from jacreg_train.training.validation import validate


def apply_fn(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


PARAMS = {"a": jnp.arange(6.0).reshape(2, 3) / 5, "b": jnp.cos(jnp.arange(12.0)).reshape(3, 4)}
INPUTS = jnp.sin(jnp.arange(10.0)).reshape(5, 2)
OF_ROWS = {
    "frobenius": lambda rows, target: rows**2,
    "row_norm": lambda rows, target: (np.sum(rows**2, axis=2) - target) ** 2,
    "row_sum": lambda rows, target: (np.sum(rows, axis=2) - target) ** 2,
}
TINY = [
    "--config.model.cnn.widths=(2,)",
    "--config.model.cnn.strides=(2,)",
    "--config.num_epochs=None",
    "--config.num_steps=3",
    "--config.batch_size=4",
    "--config.evaluation.jacobian_examples=0",
    "--config.log.penalty_share_rounds=0",
    "--config.wandb.mode=disabled",
    "--config.compilation_cache=off",
]


@pytest.mark.parametrize("wrt", ["params", "inputs"])
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_are_those_of_the_dense_jacobian(name, wrt):
    def rows(x):
        one = lambda params, x: apply_fn(params, x[None])[0]
        parts = jax.tree.leaves(jax.jacrev(one, argnums=0 if wrt == "params" else 1)(PARAMS, x))
        return np.concatenate([np.asarray(part).reshape(4, -1) for part in parts], axis=1)

    dense = np.stack([rows(x) for x in INPUTS])
    target = {} if name == "frobenius" else {"target": 0.5}
    for options in ({}, {"example_chunk": 2, "output_chunk": 3}):
        penalty = PENALTIES[name]("layerwise", wrt=wrt, **target, **options)
        found = penalty(apply_fn, PARAMS, INPUTS, jax.random.key(0), 0)
        np.testing.assert_allclose(found.value, np.sum(OF_ROWS[name](dense, 0.5)), rtol=1e-5)
        np.testing.assert_allclose(found.outputs, apply_fn(PARAMS, INPUTS), rtol=1e-5)
        assert found.standard_error == 0


def test_row_norm_from_probes_has_an_error_that_it_states():
    exact = PENALTIES["row_norm"]("layerwise", wrt="inputs")(apply_fn, PARAMS, INPUTS, None, 0)
    probed = PENALTIES["row_norm"]("stochastic", wrt="inputs", num_probes=200)
    found = probed(apply_fn, PARAMS, INPUTS, jax.random.key(0), 0)
    assert 0 < abs(found.value - exact.value) < 4 * found.standard_error < exact.value


@pytest.mark.parametrize("options", [{"probe": "cotangent"}, {"orthogonal": True}])
def test_row_norm_refuses_cotangent_probes(options):
    with pytest.raises(ValueError, match=r"no meaning for the penalty 'row_norm'; choices: probe='tangent'"):
        PENALTIES["row_norm"]("stochastic", wrt="params", **options)


def test_a_target_without_a_taker_is_refused(config):
    config.jacobian.target = 0.5
    with pytest.raises(
        ConfigError, match=r"jacobian\.target = 0\.5 .*'frobenius'; choose None, or .*row_norm, row_sum"
    ):
        validate(config, num_devices=1)
    config.jacobian.penalty = "row_sum"
    validate(config, num_devices=1)
    config.jacobian.target = float("inf")
    with pytest.raises(ConfigError, match="finite"):
        validate(config, num_devices=1)


@pytest.mark.parametrize(
    ("penalty", "parallel", "estimator"),
    [("row_norm", "jit", "stochastic"), ("row_norm", "pmap", "layerwise"), ("row_sum", "jit", "layerwise")],
)
def test_a_penalty_trains_by_flags_alone(penalty, parallel, estimator, tmp_path):
    flags = [
        f"--workdir={tmp_path}",
        f"--config.jacobian.penalty={penalty}",
        "--config.jacobian.wrt=inputs",
        "--config.jacobian.target=0.25",
        f"--config.jacobian.estimator.name={estimator}",
        f"--config.parallel={parallel}",
    ]
    assert main(["jacreg-train", *flags, *TINY]) == 0
    (record,) = read_records(tmp_path)
    assert record["train/loss"] == pytest.approx(record["train/task_loss"] + 1e-4 * record["train/penalty"])
    assert record["train/penalty_grad_norm"] > 0


def test_the_input_jacobian_config_trains(tmp_path):
    flags = ["--config=configs/digits_input_jacobian.py", f"--workdir={tmp_path}"]
    assert main(["jacreg-train", *flags, *TINY]) == 0
    (record,) = read_records(tmp_path)
    assert record["train/penalty"] > 0
