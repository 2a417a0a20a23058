"""Small cases with the right value, each from a report of a tool for this job going wrong.

`S` is the sum of squared Jacobian entries with respect to the parameters, `Sx` with respect to the inputs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jacreg_train import jacobian
from tests.jacobian.configurations import estimator, exact_options, num_outputs


def scan_three_times(w, x):
    return lax.scan(lambda h, _: (w * h, None), x, length=3)[0]


def batch_norm(p, x):
    scale, bias = p
    return (x - 0.0) * lax.rsqrt(3.0 + 1.0) * scale + bias


def grouped(groups):
    def apply(w, x):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )[:, 0, 0]

    return apply


ONE = np.ones(1)
# name -> (function, params, inputs, S)
VALUES = {
    "a weight at two positions adds before squaring": (lambda w, x: w * x + w * -x, 1.5, ONE, 0),
    "two positions of one convolution": (lambda w, x: jnp.sum(x * w, axis=1), 1.5, np.array([[1.0, -1.0]]), 0),
    "two examples never add": (lambda w, x: w * x, 1.5, np.array([1.0, -1.0]), 2),
    "tied": (lambda w, x: w * (w * x), 3.0, 2 * ONE, 144),
    "recurrence": (scan_three_times, 2.0, ONE, 144),
    "recurrence under checkpoint": (jax.checkpoint(scan_three_times), 2.0, ONE, 144),
    "zero": (lambda p, x: p["a"] * p["b"] * x, {"a": 0.0, "b": 0.0}, 2 * ONE, 0),
    "relu at a tie": (lambda w, x: jax.nn.relu(w * x), 0.0, 2 * ONE, 0),
    "maximum at a tie": (lambda w, x: jnp.maximum(w * x, 0), 0.0, 2 * ONE, 1),
    "max-pool": (lambda w, x: w * jnp.max(x, axis=1), 1.0, np.array([[1.0, 5.0, 2.0, 3.0]]), 25),
    "max-pool of the scaled": (lambda w, x: jnp.max(w * x, axis=1), 1.0, np.array([[1.0, 5.0, 2.0, 3.0]]), 25),
    "eval-mode batch norm": (batch_norm, (2.0, 0.0), 4 * ONE, 5),
    "leaves that are not floats": (lambda p, x: p["w"] * x, {"w": 3.0, "step": 7}, 2 * ONE, 4),
    "grouped convolution": (grouped(2), np.ones((1, 1, 1, 2)), np.array([3.0, 4.0]).reshape(1, 1, 1, 2), 25),
    "convolution of one group": (grouped(1), np.ones((1, 1, 2, 2)), np.array([3.0, 4.0]).reshape(1, 1, 1, 2), 50),
    "repeated ids": (lambda e, ids: e[ids].sum((1, 2)), np.ones((3, 1)), np.array([[2, 2, 0]]), 5),
    "repeated ids in a large table": (lambda e, ids: e[ids].sum((1, 2)), np.ones((30, 1)), np.array([[2, 2, 0]]), 5),
}
# name -> gradient of S in params
GRADIENTS = {
    "tied": 96,
    "recurrence": 288,
    "recurrence under checkpoint": 288,
    "zero": {"a": 0, "b": 0},
    "max-pool": 0,
    "max-pool of the scaled": 0,
    "a weight at two positions adds before squaring": 0,
}


@pytest.mark.parametrize("name", VALUES)
def test_value_and_gradient(name):
    apply_fn, params, inputs, value = VALUES[name]
    params = jax.tree.map(jnp.asarray, params)
    K = num_outputs(apply_fn, params, inputs)
    estimators = [estimator(name, **exact_options(name, K)[0]) for name in jacobian.ESTIMATORS]
    run = lambda params: [e(apply_fn, params, inputs).squared_norm for e in estimators]
    np.testing.assert_allclose(jax.jit(run)(params), value, rtol=1e-12, atol=1e-12)
    if name in GRADIENTS:
        gradients = jax.jit(jax.jacrev(run))(params)
        for got in gradients:
            jax.tree.map(
                lambda g, want: np.testing.assert_allclose(g, want, rtol=1e-12, atol=1e-12), got, GRADIENTS[name]
            )


@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_input_jacobian_of_batch_norm(name):
    options = {"num_probes": 1, "orthogonal": True} if name == "stochastic" else {}
    estimate = jacobian.make_estimator(name, wrt="inputs", **options)(
        batch_norm, (2.0, 0.0), 4 * ONE, jax.random.key(0)
    )
    assert float(estimate.squared_norm) == pytest.approx(1)


@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_gradient_keeps_the_tree(name):
    """Leaves that are not floating-point get no gradient (float0 where asked for one), and the tree stays."""
    params = {"w": jnp.asarray(3.0), "step": jnp.asarray(7), "key": jax.random.key(0)}
    run = jacobian.make_estimator(name)
    value = lambda p: run(lambda p, x: p["w"] ** 2 * x, p, 2 * ONE, jax.random.key(0)).squared_norm
    gradient = jax.grad(value, allow_int=True)({k: params[k] for k in ("w", "step")} | {"key": params["key"]})
    assert set(gradient) == set(params)
    assert float(gradient["w"]) == pytest.approx(8 * 3 * 4)
    assert gradient["step"].dtype == jax.dtypes.float0


@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_batch_equals_loop(name):
    """Second derivatives through max-pool, example by example and in a batch."""
    batched = estimator(name, **exact_options(name, 2)[0])

    def apply(p, x):
        pooled = lax.reduce_window(jnp.sin(x * p["w"])[:, :, None], -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")
        return pooled[..., 0] * p["s"]

    params = {"w": jnp.arange(1.0, 5.0), "s": jnp.asarray(0.7)}
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    gradient = jax.jit(jax.grad(lambda p, x: batched(apply, p, x).squared_norm))
    looped = [gradient(params, inputs[i : i + 1]) for i in range(3)]
    for leaf in params:
        np.testing.assert_allclose(gradient(params, inputs)[leaf], sum(g[leaf] for g in looped), rtol=1e-10)


@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_no_examples(name, wrt):
    """S = 0 without nan, and a gradient of zeros; further cases are in the table of cases."""
    empty = jacobian.make_estimator(name, wrt=wrt)

    @jax.jit
    def run(w):
        of = lambda w: empty(lambda w, x: jnp.tanh(x @ w), w, jnp.zeros((0, 3)), jax.random.key(0))
        return of(w), jax.grad(lambda w: of(w).squared_norm)(w)

    estimate, gradient = run(jnp.ones((3, 2)))
    assert float(estimate.squared_norm) == 0
    assert estimate.per_example.shape == (0,)
    assert estimate.outputs.shape == (0, 2)
    assert estimate.per_output is None or estimate.per_output.shape == (0, 2)
    assert not np.any(gradient)
