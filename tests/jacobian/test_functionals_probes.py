"""Probes: unbiased values and gradients, standard errors that cover, closed forms of the variance.

The keys are fixed, so each test gives the same verdict every time. For a right estimator and other keys each mean would
lie outside its 5 standard errors with a probability of 6e-7 (the sample is large enough for the normal law), that is
below 1e-4 for all comparisons of this file together.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian

OPTIONS = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def network(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


PARAMS = {"a": draw(0, 2, 3), "b": draw(1, 3, 2)}
INPUTS = draw(2, 3, 2)


def over_keys(function, count):
    return jax.jit(jax.vmap(function), compiler_options=OPTIONS)(jax.random.split(jax.random.key(0), count))


def check_means(samples, wanted):
    for sample, want in zip(jax.tree.leaves(samples), jax.tree.leaves(wanted), strict=True):
        error = jnp.std(sample, axis=0) / jnp.sqrt(len(sample))
        assert jnp.all(jnp.abs(jnp.mean(sample, axis=0) - want) <= 5 * error + 1e-12)


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
@pytest.mark.parametrize("wrt", ["inputs", "params"])
def test_row_norm_and_its_gradient_are_unbiased(wrt, distribution):
    def value(params, **options):
        estimate = jacobian.row_norm(network, params, INPUTS, wrt=wrt, target=0.5, **options)
        return estimate.value, estimate.per_example

    both = jax.value_and_grad(value, has_aux=True)
    probed = lambda key: both(PARAMS, num_probes=1, key=key, distribution=distribution)
    check_means(over_keys(probed, 20000), both(PARAMS))


@pytest.mark.parametrize("wrt", ["inputs", "params"])
def test_the_standard_error_of_row_norm_covers(wrt):
    exact = jacobian.row_norm(network, PARAMS, INPUTS, wrt=wrt).value
    probed = lambda key: jacobian.row_norm(network, PARAMS, INPUTS, wrt=wrt, num_probes=50, key=key)
    estimates = over_keys(probed, 1000)
    covered = jnp.mean(jnp.abs(estimates.value - exact) < 2 * estimates.standard_error)
    assert 0.91 < covered < 0.985  # 0.954 for a normal law; 0.0066 is the standard error of this share
    assert jnp.isnan(jacobian.row_norm(network, PARAMS, INPUTS, num_probes=1, key=jax.random.key(0)).standard_error)


@pytest.mark.parametrize("wrt", ["inputs", "params"])
def test_chunks_and_shares_of_the_batch_see_the_same_probes(wrt):
    options = {"wrt": wrt, "num_probes": 3, "key": jax.random.key(1)}
    whole = jacobian.row_norm(network, PARAMS, INPUTS, **options)
    chunked = jacobian.row_norm(network, PARAMS, INPUTS, chunk=2, example_chunk=2, **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), chunked, whole)
    second = jacobian.row_norm(network, PARAMS, INPUTS[2:], first_example=2, **options)
    np.testing.assert_allclose(second.per_example, whole.per_example[2:], rtol=1e-5)


def test_one_sphere_probe_of_the_outputs_has_the_mean_and_variance_of_its_closed_form():
    """The input-Jacobian penalty of Hoffman, Roberts and Yaida, 2019: one random projection of the outputs.

    For `v` uniform on the sphere of radius sqrt(K) in K dimensions, `v^T M v` has the mean `tr M` and the variance
    `2 K / (K + 2) (tr M^2 - (tr M)^2 / K)`; here `M = W W^T` for the linear map `W x`.
    """
    W, x = draw(3, 4, 3), draw(4, 2, 3)
    estimator = jacobian.make_estimator("stochastic", wrt="inputs", distribution="sphere")
    linear = lambda W, x: x @ W.T
    value = lambda W, key: estimator(linear, W, x, key).squared_norm
    samples = over_keys(lambda key: jax.value_and_grad(value)(W, key), 40000)
    check_means(samples, (len(x) * jnp.sum(W**2), 2 * len(x) * W))
    M, K = W @ W.T, len(W)
    variance = len(x) * 2 * K / (K + 2) * (jnp.trace(M @ M) - jnp.trace(M) ** 2 / K)
    deviations = (samples[0] - jnp.mean(samples[0])) ** 2
    check_means(deviations, variance)
