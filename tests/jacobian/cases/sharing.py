"""Weights in several places, in parts, and rearranged."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tests.jacobian.cases.table import IDS, Case, X, case, normal, weights


@case
def tied_layers() -> Case:
    return lambda p, x: jnp.tanh(jnp.tanh(x @ p["w"]) @ p["w"]), weights(w=(3, 3)), X(3)


@case
def tied_transposed() -> Case:
    return lambda p, ids: jnp.tanh(p["e"][ids].mean(1)) @ p["e"].T, weights(e=(4, 2)), IDS


@case
def tied_by_slicing() -> Case:
    return lambda p, x: jnp.sin(x @ p["w"][:3]) @ p["w"][1:4, :1] + x @ p["w"][1:], weights(w=(4, 3)), X(3)


@case
def one_weight_cut_into_layers() -> Case:
    def apply(p, x):
        q, k, v = jnp.split(p["qkv"], 3, axis=1)
        return jnp.sin(x @ q) * (x @ k) + x @ v

    return apply, weights(qkv=(3, 6)), X(3)


@case
def one_flat_vector_of_weights() -> Case:
    def apply(p, x):
        w, b, v = p[:6].reshape(3, 2), p[6:8], p[8:].reshape(2, 2)
        return jnp.tanh(x @ w + b) @ v

    return apply, normal(3, 12), X(3)


@case
def concatenated_weights() -> Case:
    apply = lambda p, x: jnp.tanh(x @ jnp.concatenate([p["a"], p["b"]], axis=1)) @ jnp.stack([p["c"], p["d"]]).T
    return apply, weights(a=(3, 1), b=(3, 2), c=(3,), d=(3,)), X(3)


@case
def concatenated_with_itself() -> Case:
    return lambda p, x: jnp.sin(x @ jnp.concatenate([p["w"], p["w"]], axis=1)), weights(w=(3, 1)), X(3)


@case
def concatenated_with_constants() -> Case:
    def apply(p, x):
        one = jnp.concatenate([p["w"], jnp.ones(1)])
        two = jnp.concatenate([jnp.zeros(1), p["v"], jnp.full(1, 2.0)])
        three = jnp.concatenate([p["u"], jnp.arange(2.0)])
        return jnp.sin(x * one) + jnp.cos(x) * two + x**2 * three

    return apply, weights(w=(2,), v=(1,), u=(1,)), X(3)


@case
def concatenated_with_a_tied_weight() -> Case:
    return lambda p, x: jnp.tanh(x @ jnp.stack([p["a"], p["b"]])) @ p["b"], weights(a=(2,), b=(2,)), X(2)


@case
def weight_in_two_operations() -> Case:
    return lambda p, x: x @ p["w"] + jnp.sin(x) * p["w"][:, 0] * jnp.sum(p["w"] ** 2), weights(w=(3, 3)), X(3)


@case
def same_operand_twice() -> Case:
    apply = lambda p, x: jnp.where(x > 0, p["w"], p["w"]) + lax.select_n(x > 0.3, p["v"] + 0 * x, p["v"] * x)
    return apply, weights(w=(3,), v=(3,)), X(3)


@case
def rearranged_weights() -> Case:
    def apply(p, x):
        w = jnp.flip(p["w"].reshape(2, 3).T[None], axis=1)[0]
        return jnp.sin(x @ w) * lax.optimization_barrier(p["s"])[None] + jnp.squeeze(p["b"])

    return apply, weights(w=(6,), s=(2,), b=(1, 2, 1)), X(3)


@case
def barrier_around_example_and_weights() -> Case:
    def apply(p, x):
        x, w = lax.optimization_barrier((x, p["w"]))
        return jnp.sin(x @ w)

    return apply, weights(w=(3, 2)), X(3)


@case
def linear_ends_that_meet_themselves() -> Case:  # of a last layer whose output reaches the function's twice, or in part
    def apply(p, x):
        y = x @ p["w"]
        z = jnp.concatenate([y + jnp.flip(y, 1), x @ p["v"]], axis=1)
        return z - jnp.concatenate([x @ p["u"], jnp.zeros((len(x), 1))], axis=1)

    return apply, weights(w=(3, 2), v=(3, 1), u=(3, 2)), X(3)


@case
def repeated_padded_and_rolled_weights() -> Case:
    apply = lambda p, x: (
        x * jnp.tile(p["a"], 2) + jnp.sin(x) * jnp.repeat(p["a"], 2) + jnp.pad(p["b"], 1) * jnp.roll(p["c"], 1)
    )
    return apply, weights(a=(2,), b=(2,), c=(4,)), X(4)


@case
def weights_joined_without_the_example_first() -> Case:
    return (
        lambda p, x: jnp.sin(x @ (p["a"] @ p["b"])) @ jnp.linalg.inv(p["c"]),
        weights(a=(3, 2), b=(2, 2), c=(2, 2)),
        X(3),
    )
