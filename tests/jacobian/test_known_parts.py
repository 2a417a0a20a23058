"""What the stochastic estimator knows without probes: which weights, how much, and what it does to the variance."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian
from jacreg_train.jacobian.layerwise import split_params_pullback

OPTIONS = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
N, T, C, OUT = 3, 4, 2, 3


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def convolution(x, k, groups=1, strides=(1,), padding="SAME", dilation=(1,)):
    numbers = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(
        x, k, strides, padding, rhs_dilation=dilation, feature_group_count=groups, dimension_numbers=numbers
    )


# name -> function of (params, hidden [n, T, C]), shapes of its parameters, and those that are known.
HEADS: dict[str, Any] = {
    "dense": (lambda p, h: h.reshape(len(h), -1) @ p["w"] + p["b"], {"w": (T * C, OUT), "b": (OUT,)}, "wb"),
    "positions": (
        lambda p, h: -jnp.transpose(1.5 + h @ p["w"] + p["b"], (2, 0, 1)).transpose(1, 0, 2),
        {"w": (C, OUT), "b": (OUT,)},
        "wb",
    ),
    "weight first": (lambda p, h: jnp.einsum("oc,ntc->not", p["w"], h), {"w": (OUT, C)}, "w"),
    "batched": (lambda p, h: jnp.einsum("ntc,tco->nto", h, p["w"]), {"w": (T, C, OUT)}, "w"),
    "residual": (lambda p, h: h - jnp.sin(h) @ p["w"] + p["b"], {"w": (C, C), "b": (T, C)}, "wb"),
    "two branches": (
        lambda p, h: jnp.concatenate([h @ p["w"], jnp.cos(h) @ p["v"]], axis=2),
        {"w": (C, OUT), "v": (C, 1)},
        "wv",
    ),
    "convolution": (lambda p, h: convolution(h, p["k"]), {"k": (3, C, OUT)}, "k"),
    "grouped": (
        lambda p, h: convolution(h, p["k"], groups=2, strides=(2,), padding=((2, 1),), dilation=(2,)),
        {"k": (2, 1, 2)},
        "k",
    ),
    "nonlinear": (lambda p, h: jnp.tanh(h @ p["w"]), {"w": (C, OUT)}, ""),
    "scaled": (lambda p, h: 2 * (h @ p["w"]), {"w": (C, OUT)}, ""),
    "used twice": (lambda p, h: (lambda y: y + jnp.flip(y, 1))(h @ p["w"]), {"w": (C, OUT)}, ""),
    "tied": (lambda p, h: (h @ p["w"]) @ p["w"], {"w": (C, C)}, ""),
    "pooled": (lambda p, h: jnp.sum(h @ p["w"], axis=1), {"w": (C, OUT)}, ""),
}


def network(head):
    apply_head, shapes, known = HEADS[head]
    params = {"body": draw(9, C, C), **{name: draw(i, *shape) for i, (name, shape) in enumerate(shapes.items())}}
    return lambda p, x: apply_head(p, jnp.tanh(x @ p["body"])), params, draw(7, N, T, C), known


def rows(apply_fn, params, inputs):
    """For each leaf `J [n, K, entries]`."""
    one = lambda p, x: jnp.ravel(apply_fn(p, x[None]))
    jacobian = jax.vmap(jax.jacrev(one), (None, 0))(params, inputs)
    return {name: leaf.reshape(*leaf.shape[:2], -1) for name, leaf in jacobian.items()}


@pytest.mark.parametrize("head", HEADS)
def test_what_is_known_is_the_dense_norm_of_the_last_layers_weights(head):
    apply_fn, params, inputs, known = network(head)
    norms = {name: jnp.sum(j**2, axis=(1, 2)) for name, j in rows(apply_fn, params, inputs).items()}
    _, found, _ = split_params_pullback(apply_fn, params, inputs)
    np.testing.assert_allclose(found, sum((norms[name] for name in known), jnp.zeros(N)), rtol=1e-12)


@pytest.mark.parametrize("head", ["positions", "residual", "grouped", "tied"])
def test_all_orthogonal_probes_stay_exact(head):
    apply_fn, params, inputs, _ = network(head)
    K = apply_fn(params, inputs)[0].size
    options = {"orthogonal": True, "num_probes": K, "example_chunk": 2, "output_chunk": 5}
    estimators = [jacobian.make_estimator("stochastic", **options), jacobian.make_estimator("exact")]

    def everything(params):
        found = [estimator(apply_fn, params, inputs, jax.random.key(0)) for estimator in estimators]
        return [(estimate.squared_norm, estimate.per_example, estimate.standard_error) for estimate in found]

    values, gradients = jax.jit(
        lambda params: (everything(params), jax.jacrev(lambda p: [v[0] for v in everything(p)])(params)),
        compiler_options=OPTIONS,
    )(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), *values)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), *gradients)


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_the_variance_is_that_of_the_rest_and_the_mean_is_exact(distribution):
    """Means of 20000 draws within 5 of their standard errors; a right estimator fails new keys once in a million."""
    apply_fn, params, inputs, known = network("positions")
    estimator = jacobian.make_estimator("stochastic", distribution=distribution, num_probes=2)
    both = jax.value_and_grad(
        lambda p, key: (lambda e: (e.squared_norm, e))(estimator(apply_fn, p, inputs, key)), has_aux=True
    )
    keys = jax.random.split(jax.random.key(0), 20000)
    (draws, estimates), gradients = jax.jit(jax.vmap(both, (None, 0)), compiler_options=OPTIONS)(params, keys)

    def check_mean(draws, wanted):
        error = jnp.std(draws, axis=0) / jnp.sqrt(len(draws))
        assert jnp.all(jnp.abs(jnp.mean(draws, axis=0) - wanted) <= 5 * error)

    dense = rows(apply_fn, params, inputs)
    total = lambda p: sum(jnp.sum(j**2) for j in rows(apply_fn, p, inputs).values())
    check_mean(draws, total(params))
    jax.tree.map(check_mean, gradients, jax.grad(total)(params))

    def variance(names):
        grams = sum(jnp.einsum("nka,nla->nkl", dense[name], dense[name]) for name in names)
        diagonal = jnp.sum(jnp.diagonal(grams, axis1=1, axis2=2) ** 2) if distribution == "rademacher" else 0
        return (jnp.sum(grams**2) - diagonal) * 2 / 2  # over two probes

    rest = variance(set(dense) - set(known))
    check_mean((draws - total(params)) ** 2, rest)
    check_mean(estimates.standard_error**2, rest)
    assert rest < 0.7 * variance(dense)


def test_a_linear_model_needs_no_probes():
    W, x = draw(0, 3, 4), draw(1, 5, 3)
    estimator = jacobian.make_estimator("stochastic", distribution="gaussian", num_probes=2)
    estimate = estimator(lambda W, x: x @ W, W, x, jax.random.key(0))
    np.testing.assert_allclose(estimate.squared_norm, 4 * jnp.sum(x**2), rtol=1e-12)
    assert estimate.standard_error == 0


def test_a_half_precision_last_layer_does_not_overflow():
    W, x = jnp.ones((2, 2), jnp.float16), jnp.full((1, 2), 300, jnp.float16)
    estimate = jacobian.make_estimator("stochastic")(lambda W, x: x @ W, W, x, jax.random.key(0))
    np.testing.assert_allclose(estimate.squared_norm, 4 * 300.0**2, rtol=1e-6)
