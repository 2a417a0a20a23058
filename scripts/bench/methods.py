"""The ways to compute `S = sum J^2`: what people write first, the estimators, and probes by finite differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench.cases import NUM_CLASSES, Case
from jacreg_train import jacobian
from jacreg_train.jacobian.probes import draw_like

SquaredNorm = Callable[[Any, Any, jax.Array, jax.Array], jax.Array]  # (apply_fn, params, inputs, key) -> scalar
FINITE_STEP = 1e-3  # small against weights of 0.05, large against float32's rounding
EXAMPLE_CHUNK = 8


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to compute `S`, of which the gradient is measured.

    Attributes:
        squared_norm: `(apply_fn, params, inputs, key) -> S`.
        jacobian_examples: of how many examples at a time it holds the Jacobian, given `n`.
        is_exact: whether it is `S` up to rounding.
    """

    squared_norm: SquaredNorm
    jacobian_examples: Callable[[int], int] = lambda n: 0
    is_exact: bool = False

    def gradient(self, case: Case) -> Callable[[Any, jax.Array, jax.Array], Any]:
        """`(params, inputs, key) -> dS/dparams`."""
        return lambda params, inputs, key: jax.grad(
            lambda params: self.squared_norm(case.apply_fn, params, inputs, key)
        )(params)

    def jacobian_bytes(self, case: Case) -> int:
        """What the entries of the Jacobian that it holds take, once; its gradient holds more."""
        return 4 * self.jacobian_examples(case.n) * NUM_CLASSES * case.num_params


def dense(apply_fn: Any, params: Any, inputs: jax.Array, key: jax.Array) -> jax.Array:
    """What people write first: `jax.jacobian` of each example, squared and summed."""
    of_one = lambda params, x: apply_fn(params, x[None])[0]
    entries = jax.vmap(jax.jacobian(of_one), (None, 0))(params, inputs)
    return jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(entries)]))


def finite_difference(apply_fn: Any, params: Any, inputs: jax.Array, key: jax.Array) -> jax.Array:
    """`|f(p + s u) - f(p)|^2 / s^2` for one random `u` (Qiu et al. 2023)."""
    leaves, tree = jax.tree.flatten(params)
    probe = draw_like("rademacher", key, leaves)
    moved = [p + FINITE_STEP * u for p, u in zip(leaves, probe, strict=True)]
    difference = apply_fn(jax.tree.unflatten(tree, moved), inputs) - apply_fn(params, inputs)
    return jnp.sum(jnp.square(difference)) / FINITE_STEP**2


def joint_gradient_norm(apply_fn: Any, params: Any, inputs: jax.Array, key: jax.Array) -> jax.Array:
    """`|sum_ik dy_ik/dparams|^2`: not `S`, but the least that a gradient of a gradient's norm is."""
    outputs, pull = jax.vjp(lambda params: apply_fn(params, inputs), params)
    (gradient,) = pull(jnp.ones_like(outputs))
    return jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)]))


def estimator(name: str, **options: Any) -> SquaredNorm:
    """`S` by one of `jacobian.ESTIMATORS`."""
    estimate = jacobian.make_estimator(name, **options)
    return lambda apply_fn, params, inputs, key: estimate(apply_fn, params, inputs, key).squared_norm


METHODS: dict[str, Method] = {
    "dense Jacobian": Method(dense, lambda n: n, is_exact=True),
    f"chunked ({EXAMPLE_CHUNK} examples)": Method(
        estimator("chunked", example_chunk=EXAMPLE_CHUNK), lambda n: min(n, EXAMPLE_CHUNK), is_exact=True
    ),
    "layerwise": Method(estimator("layerwise"), is_exact=True),
    f"layerwise ({EXAMPLE_CHUNK} examples)": Method(estimator("layerwise", example_chunk=EXAMPLE_CHUNK), is_exact=True),
    "cotangent probe": Method(estimator("stochastic")),
    "tangent probe": Method(estimator("stochastic", probe="tangent")),
    "finite difference": Method(finite_difference),
}
PLAIN = "plain gradient"  # of the mean cross-entropy: the unit of every ratio
# The gradient that relative errors are against: the first of these that runs.
REFERENCES = ("layerwise", f"layerwise ({EXAMPLE_CHUNK} examples)")
