"""Statistics of the stochastic estimates, with fixed seeds.

Each comparison is of means over `DRAWS` draws with a bound of 5 of their own standard errors, so that a right program
fails a fresh seed in about one of a million comparisons; a few hundred are made here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian
from jacreg_train.jacobian.jaxprs import inline_calls
from jacreg_train.jacobian.probes import DISTRIBUTIONS
from models import make_model
from tests.jacobian.cases import X, weights

DRAWS = 4000
N, K = 3, 4
PARAMS, INPUTS = {"w": (3, 2), "b": (2,), "v": (2, 4)}, (3,)
SETTINGS = [
    *(
        {"probe": probe, "distribution": distribution, "num_probes": num_probes}
        for probe in ("cotangent", "tangent")
        for distribution in DISTRIBUTIONS
        for num_probes in (3,)
    ),
    *({"orthogonal": True, "num_probes": num_probes} for num_probes in (1, 2)),
]


def network(p, x):
    return jnp.sin(jnp.tanh(x @ p["w"] + p["b"]) @ p["v"])  # nothing is known of it without probes


def jacobians(params, inputs, wrt):
    """`J [n, K, entries]`."""
    one = lambda p, x: network(p, x[None])[0]
    jacobian = jax.vmap(jax.jacrev(one, argnums=0 if wrt == "params" else 1), (None, 0))(params, inputs)
    return jnp.concatenate([leaf.reshape(N, K, -1) for leaf in jax.tree.leaves(jacobian)], axis=2)


def variance(settings, j, wrt):
    """The variance of the estimate of `sum J^2`, from the probes' fourth moments."""
    if settings.get("probe") == "tangent":  # one probe for all examples where all share the parameters
        grams = jnp.einsum("nka,nkb->nab", j, j)
        grams = jnp.sum(grams, axis=0, keepdims=True) if wrt == "params" else grams
    else:
        grams = jnp.einsum("nka,nla->nkl", j, j)
    size, count = grams.shape[-1], settings["num_probes"]
    squares, trace = jnp.sum(grams**2, axis=(1, 2)), jnp.trace(grams, axis1=1, axis2=2)
    sphere = 2 * size / (size + 2) * (squares - trace**2 / size)
    if settings.get("orthogonal"):
        return jnp.sum(sphere) / count * (size - count) / (size - 1)
    diagonal = jnp.sum(jnp.diagonal(grams, axis1=1, axis2=2) ** 2, axis=1)
    formulas = {"gaussian": 2 * squares, "rademacher": 2 * (squares - diagonal), "sphere": sphere}
    return jnp.sum(formulas[settings["distribution"]]) / count


def assert_mean(draws, want, what):
    """The mean of `draws [DRAWS, ...]` is `want`, entry by entry."""
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(np.mean(draws, axis=0) - want), 5 * error + 1e-9, err_msg=what)


@pytest.mark.parametrize("wrt", ["params", "inputs"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_moments(settings, wrt):
    """Means of value, per-example and per-output values; variance against its formula; the standard error's square."""
    params, inputs = weights(**PARAMS), X(*INPUTS)
    estimator = jacobian.make_estimator("stochastic", wrt=wrt, **settings)
    keys = jax.random.split(jax.random.key(0), DRAWS)
    found = jax.jit(jax.vmap(lambda key: estimator(network, params, inputs, key)))(keys)
    j = jacobians(params, inputs, wrt)
    rows = jnp.sum(j**2, axis=2)
    total = float(jnp.sum(rows))
    assert_mean(found.squared_norm, total, "squared_norm")
    assert_mean(found.per_example, jnp.sum(rows, axis=1), "per_example")
    if settings.get("probe") == "tangent":
        assert_mean(found.per_output, rows, "per_output")
    else:
        assert found.per_output is None
    np.testing.assert_allclose(jnp.sum(found.per_example, axis=1), found.squared_norm, rtol=1e-10)
    np.testing.assert_allclose(found.outputs[5], network(params, inputs), rtol=1e-10)
    true_variance = float(variance(settings, j, wrt))
    assert_mean((found.squared_norm - total) ** 2, true_variance, "variance")
    if settings["num_probes"] == 1:
        assert np.all(np.isnan(found.standard_error))
    else:
        assert_mean(found.standard_error**2, true_variance, "standard_error")


@pytest.mark.parametrize("wrt", ["params", "inputs"])
@pytest.mark.parametrize("probe", ["cotangent", "tangent"])
def test_coverage_of_the_standard_error(probe, wrt):
    """The truth lies within two standard errors in 95 % of all draws, somewhat fewer with skewed sums of few terms."""
    params, inputs = weights(**PARAMS), X(*INPUTS)
    estimator = jacobian.make_estimator("stochastic", wrt=wrt, probe=probe, num_probes=32)
    keys = jax.random.split(jax.random.key(1), 1000)
    found = jax.jit(jax.vmap(lambda key: estimator(network, params, inputs, key)))(keys)
    total = jnp.sum(jacobians(params, inputs, wrt) ** 2)
    covered = np.mean(np.abs(found.squared_norm - total) < 2 * found.standard_error)
    assert 0.90 < covered < 0.98


PARTS = (slice(0, 1), slice(1, N))
SHARED = {
    "squared norm": jacobian.make_estimator("stochastic", probe="tangent", num_probes=4),
    "row norm": lambda *arguments, **options: jacobian.row_norm(
        *arguments[:3], key=arguments[3], wrt="params", num_probes=2, **options
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_draws_of_parts_add_up(name):
    params, inputs, key = weights(**PARAMS), X(*INPUTS), jax.random.key(5)
    whole = SHARED[name](network, params, inputs, key)
    parts = [SHARED[name](network, params, inputs[rows], key, first_example=rows.start) for rows in PARTS]
    np.testing.assert_allclose(sum(part.shared_draws for part in parts), whole.shared_draws, rtol=1e-10)
    total = whole.squared_norm if name == "squared norm" else whole.value
    np.testing.assert_allclose(jnp.mean(whole.shared_draws), total, rtol=1e-10)
    error = jacobian.standard_error_of_mean(whole.shared_draws)
    np.testing.assert_allclose(error, whole.standard_error, rtol=1e-10)
    assert error > 0
    as_if_independent = jnp.sqrt(sum(part.standard_error**2 for part in parts))
    assert abs(as_if_independent / error - 1) > 0.01


@pytest.mark.parametrize("wrt", ["params", "inputs"])
@pytest.mark.parametrize("settings", [{}, {"probe": "tangent"}, {"orthogonal": True, "num_probes": 2}], ids=str)
def test_gradient_is_unbiased(settings, wrt):
    params, inputs = weights(**PARAMS), X(*INPUTS)
    estimator = jacobian.make_estimator("stochastic", wrt=wrt, **settings)
    keys = jax.random.split(jax.random.key(2), DRAWS)
    value = lambda params, key: estimator(network, params, inputs, key).squared_norm
    draws = jax.jit(jax.vmap(jax.grad(value), (None, 0)))(params, keys)
    want = jax.grad(lambda params: jnp.sum(jacobians(params, inputs, wrt) ** 2))(params)
    for name in params:
        assert_mean(draws[name], want[name], name)


@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_all_orthogonal_probes_have_no_error(wrt):
    params, inputs = weights(**PARAMS), X(*INPUTS)
    estimator = jacobian.make_estimator("stochastic", wrt=wrt, orthogonal=True, num_probes=K)
    estimate = estimator(network, params, inputs, jax.random.key(0))
    assert float(estimate.standard_error) == 0
    np.testing.assert_allclose(estimate.squared_norm, jnp.sum(jacobians(params, inputs, wrt) ** 2), rtol=1e-10)


@pytest.mark.parametrize("distribution", ["rademacher", "sphere"])
@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_one_entry_is_exact(wrt, distribution):
    """A single parameter or a single input entry meets a probe of 1 or -1."""
    options = {"probe": "tangent", "distribution": distribution}
    estimator = jacobian.make_estimator("stochastic", wrt=wrt, **options)
    x = jnp.asarray([2.0, -1.0, 0.5])
    estimate = estimator(lambda w, x: jnp.sin(w * x), 0.7, x, jax.random.key(0))
    want = np.cos(0.7 * x) * (x if wrt == "params" else 0.7)
    np.testing.assert_allclose(estimate.per_example, want**2, rtol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_distributions(distribution, size):
    """Identity covariance; lengths as promised."""
    draw = lambda key: DISTRIBUTIONS[distribution](key, size, jnp.float64)
    probes = jax.vmap(draw)(jax.random.split(jax.random.key(0), DRAWS))
    assert_mean(probes[:, :, None] * probes[:, None, :], np.eye(size), "covariance")
    assert_mean(probes, np.zeros(size), "mean")
    if distribution != "gaussian":
        np.testing.assert_allclose(jnp.sum(probes**2, axis=1), size, rtol=1e-10)


def test_orthogonal_probes():
    """Orthogonal, of length sqrt(K), and without a preferred direction or sign."""
    from jacreg_train.jacobian.probes import draw_orthogonal_probes

    probes = jax.vmap(lambda key: draw_orthogonal_probes(key, 2, 3, jnp.float64))(
        jax.random.split(jax.random.key(0), DRAWS)
    )
    grams = jnp.einsum("dka,dla->dkl", probes, probes)
    np.testing.assert_allclose(grams, np.broadcast_to(3 * np.eye(2), grams.shape), atol=1e-10)
    assert_mean(probes, np.zeros((2, 3)), "mean")
    for k in range(2):
        assert_mean(probes[:, k, :, None] * probes[:, k, None, :], np.eye(3), "covariance")


def test_several_tangent_probes_of_group_norm_add_one_axis():
    """XLA on CPU can crash in float32 reductions of seven and more axes (jax#40412); group norm itself has five."""
    model = make_model("cnn", num_classes=2, widths=(4,), strides=(1,), dense_width=None, norm="group")
    images = jnp.ones((3, 4, 4, 1), jnp.float32)
    params, state = jax.eval_shape(model.init, jax.random.key(0), images)
    estimator = jacobian.make_estimator("stochastic", probe="tangent", num_probes=2)
    value = lambda p: estimator(lambda p, x: model.apply(p, state, x)[0], p, images, jax.random.key(0)).squared_norm
    jaxpr = jax.make_jaxpr(jax.grad(value))(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), params))
    reduced = [eqn.invars[0].aval.ndim for eqn in inline_calls(jaxpr).eqns if eqn.primitive.name == "reduce_sum"]
    assert max(reduced) <= 6
