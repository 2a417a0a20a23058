"""Picking, ordering and summing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tests.jacobian.cases.table import Case, X, case, weights


@case
def triangular_and_scattered_weights() -> Case:
    def apply(p, x):
        full = jnp.zeros((3, 3)).at[jnp.triu_indices(3)].set(p["entries"])
        return jnp.sin(x @ full) + x @ jnp.tril(p["w"]) + x @ jnp.eye(3).at[0, 1].set(p["s"])

    return apply, weights(entries=(6,), w=(3, 3), s=()), X(3)


@case
def weights_put_in_an_order_by_weights() -> Case:
    return lambda p, x: (x * p["v"])[:, jnp.argsort(p["w"])] * p["w"], weights(w=(3,), v=(3,)), X(3)


@case
def platform_dependent() -> Case:
    other = lambda x, w: x @ w
    apply = lambda p, x: lax.platform_dependent(x, p["w"], cpu=lambda x, w: jnp.sin(x @ w), default=other)
    return apply, weights(w=(3, 2)), X(3)


@case
def max_pool() -> Case:
    def apply(p, x):
        y = x[..., None] * p["w"]
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 1), (1, 1, 1), "SAME").sum(1)

    return apply, weights(w=(2,)), X(4)


@case
def average_pool() -> Case:
    pool = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 2, 1), "VALID")
    return lambda p, x: pool(jnp.tanh(x @ p["w"])).sum(2), weights(w=(2, 3)), X(4, 2)


@case
def sort() -> Case:
    return lambda p, x: jnp.sort(x * p["w"], axis=1) * jnp.sort(p["v"]), weights(w=(4,), v=(4,)), X(4)


@case
def sort_of_several() -> Case:
    def apply(p, x):
        keys, values = lax.sort((x, x * p["w"]), num_keys=1)
        return keys * p["v"] + values[:, ::-1]

    return apply, weights(w=(4,), v=(4,)), X(4)


@case
def top_k() -> Case:
    return lambda p, x: lax.top_k(jnp.sin(x @ p["w"]), 2)[0] * p["s"], weights(w=(3, 4), s=(2,)), X(3)


@case
def gather_at_the_largest() -> Case:
    def apply(p, x):
        y = x * p["w"]
        return jnp.take_along_axis(y**2, jnp.argmax(y, axis=1, keepdims=True), axis=1)

    return apply, weights(w=(4,)), X(4)


@case
def where() -> Case:
    return lambda p, x: jnp.where(x > 0, p["a"], p["b"] * x) * p["s"], weights(a=(3,), b=(3,), s=()), X(3)


@case
def ties() -> Case:
    apply = lambda p, x: jax.nn.relu(x * p["w"]) + jnp.maximum(x * p["v"], 0) + jnp.abs(x * p["v"])
    return apply, {"w": jnp.zeros(3), "v": jnp.zeros(3)}, X(3)


@case
def clipped() -> Case:
    return (
        lambda p, x: jnp.clip(x @ p["w"], p["low"], p["low"] + 1) + jnp.sign(x @ p["w"]),
        weights(w=(3, 2), low=()),
        X(3),
    )


@case
def cumulative() -> Case:
    def apply(p, x):
        y = x * p["w"]
        return jnp.cumsum(y, 1) + jnp.cumprod(y, 1) + lax.cummax(y, 1) + lax.cumlogsumexp(y, 1) * p["s"]

    return apply, weights(w=(3,), s=(3,)), X(3)


@case
def reductions() -> Case:
    def apply(p, x):
        y = x @ p["w"]
        return jnp.stack([y.max(1), y.min(1), y.prod(1), jax.nn.logsumexp(y, 1), jnp.linalg.norm(y, axis=1)], 1)

    return apply, weights(w=(3, 4)), X(3)


@case
def resized() -> Case:
    apply = lambda p, x: jax.image.resize(x[..., None] * p["w"], (len(x), 6, 2), "linear").sum(2) ** 2
    return apply, weights(w=(2,)), X(3)


@case
def fourier() -> Case:
    def apply(p, x):
        spectrum = jnp.fft.rfft(x) * p["filter"] * lax.complex(p["real"], p["imaginary"]) + p["shift"]
        return jnp.fft.irfft(spectrum * jnp.fft.rfft(p["kernel"]), 4)

    return apply, weights(filter=(3,), real=(3,), imaginary=(3,), shift=(3,), kernel=(4,)), X(4)


@case
def complex_magnitude() -> Case:
    apply = lambda p, x: jnp.abs(jnp.exp(1j * p["phase"]) * x + 1j * p["b"]) + (x * p["w"] * (2 + 1j)).imag
    return apply, weights(phase=(3,), b=(3,), w=(3,)), X(3)
