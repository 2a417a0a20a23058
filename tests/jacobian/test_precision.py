"""Low precision: squares accumulate in float32, nothing overflows, and errors are those of the type's rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian
from tests.jacobian.cases import CASES
from tests.jacobian.configurations import estimator
from tests.jacobian.oracle import assert_close, dense

TYPES = ("float16", "bfloat16", "float32")
PROBES: dict[str, dict] = {"stochastic": {"num_probes": 1, "orthogonal": True}}
NETWORKS = ("dense", "layer_norm", "tied_transposed", "weight_standardization")


@pytest.mark.parametrize("wrt", ["params", "inputs"])
@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_squares_beyond_the_range_of_float16(name, wrt):
    """f = w x with w = x = 300: S = 90000 is no float16."""
    w, x = jnp.asarray(300, jnp.float16), jnp.full(1, 300, jnp.float16)
    estimator = jacobian.make_estimator(name, wrt=wrt, **PROBES.get(name, {}))
    estimate = estimator(lambda w, x: w * (x / 300), w, x, jax.random.key(0)) if wrt == "inputs" else None
    estimate = estimate or estimator(lambda w, x: w * x, w, x, jax.random.key(0))
    assert float(estimate.squared_norm) == (90000 if wrt == "params" else 1)
    assert estimate.squared_norm.dtype == jnp.float32
    assert estimate.outputs.dtype == jnp.float16


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_many_small_squares(name, dtype):
    """f = w . x of length 4096, all ones: S = 4096, where adding ones in bfloat16 stops at 256."""
    w, x = jnp.ones(4096, dtype), jnp.ones((1, 4096), dtype)
    for apply in (lambda w, x: x @ w, lambda w, x: jnp.sum(x * w, axis=1)):
        estimate = jacobian.make_estimator(name, **PROBES.get(name, {}))(apply, w, x, jax.random.key(0))
        assert float(estimate.squared_norm) == 4096


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_many_examples(name, dtype):
    """2000 examples of 9 each: S = 18000 needs more digits than bfloat16 has."""
    w, x = jnp.ones((), dtype), jnp.full(2000, 3, dtype)
    estimate = jacobian.make_estimator(name, **PROBES.get(name, {}))(lambda w, x: w * x, w, x, jax.random.key(0))
    assert float(estimate.squared_norm) == 18000


@pytest.mark.parametrize(
    ("case", "dtype"), [*((case, "bfloat16") for case in NETWORKS), *((case, "float16") for case in NETWORKS[:3])]
)
def test_networks(case, dtype):
    """Value and gradient of a network in `dtype` against the dense Jacobian of the same network in float64."""
    apply_fn, params, inputs = CASES[case]()
    is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    rounded = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, dtype) if is_float(x) else x, tree)
    double = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, float) if is_float(x) else x, tree)
    params, inputs = rounded(params), rounded(inputs)
    assert apply_fn(params, inputs).dtype == dtype
    options = [("layerwise", {}), ("layerwise", {"example_chunk": 2}), ("chunked", {})]
    estimators = {f"{name} {chunks}": estimator(name, **chunks) for name, chunks in options}

    def run(params):
        value = lambda params, e: (lambda found: (found.squared_norm, found))(e(apply_fn, params, inputs))
        return {label: jax.grad(value, has_aux=True)(params, e) for label, e in estimators.items()}

    oracle = lambda params: jax.grad(
        lambda params: (lambda found: (found.squared_norm, found))(dense(apply_fn, params, double(inputs), "params")),
        has_aux=True,
    )(params)
    wanted_gradient, wanted = jax.jit(oracle)(double(params))
    rtol = 64 * float(jnp.finfo(dtype).eps)  # a few dozen roundings one after the other
    for label, (gradient, found) in jax.jit(run)(params).items():
        assert found.squared_norm.dtype == jnp.float32
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(gradient))
        assert_close(found.per_example, wanted.per_example, f"{label}: per_example", rtol)
        assert_close(gradient, wanted_gradient, f"{label}: gradient", rtol)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chunks_of_a_half_precision_network_change_rounding_only(dtype):
    """The gradient's accumulator is wider than the parameters: 64 chunks lose no more than one."""
    w, x = jnp.full((), 0.7, dtype), jnp.asarray(np.random.default_rng(0).normal(size=(64, 1)), dtype)
    value = lambda w, **chunks: (
        jacobian.make_estimator("layerwise", **chunks)(lambda w, x: jnp.tanh(w * x), w, x).squared_norm
    )
    whole, chunks = jax.grad(value)(w), jax.grad(lambda w: value(w, example_chunk=1))(w)
    np.testing.assert_allclose(float(whole), float(chunks), rtol=8 * float(jnp.finfo(dtype).eps))
