"""Layers as functions of arrays, the same for every library: normalisation, pooling, dropout.

Images are ``[n, H, W, C]``. Every function returns the dtype of ``x``.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

NORMS = ("none", "group", "batch")
POOLINGS = ("none", "max", "average")
READOUTS = ("flatten", "mean")
EPSILON = 1e-5
MOMENTUM = 0.9


def num_groups(width: int) -> int:
    """As many groups as divide ``width`` and leave at least 16 channels in each; one for narrow layers.

    Groups of a single channel would be constant on 1x1 images, and their layer would ignore its input.
    """
    return max(groups for groups in range(1, max(width // 16, 1) + 1) if width % groups == 0)


def group_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Normalise each example over positions and groups of channels."""
    groups = num_groups(x.shape[-1])
    grouped = _widen(x).reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    mean, variance = _moments(grouped, (1, 2, 4), None)
    return _normalize(grouped, mean, variance).reshape(x.shape).astype(x.dtype) * scale + bias


def batch_norm(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    *,
    train: bool,
    axis_name: str | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalise each channel, with the statistics of the batch if ``train`` and the running ones if not.

    Returns:
        the result, and the running mean and (biased) variance after this batch.
    """
    wide = _widen(x)
    batch_mean, batch_variance = mean, variance
    if train:
        batch_mean, batch_variance = _moments(wide, (0, 1, 2), axis_name)
        mean = MOMENTUM * mean + (1 - MOMENTUM) * batch_mean.reshape(mean.shape)
        variance = MOMENTUM * variance + (1 - MOMENTUM) * batch_variance.reshape(variance.shape)
    return _normalize(wide, batch_mean, batch_variance).astype(x.dtype) * scale + bias, mean, variance


def pool(x: jax.Array, pooling: str, stride: int) -> jax.Array:
    """Pool windows of ``stride`` by ``stride`` at that stride, cut off at the border ("max" or "average")."""
    window = (1, stride, stride, 1)
    if pooling == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "SAME")
    total = lambda values: lax.reduce_window(values, 0.0, lax.add, window, window, "SAME")
    return total(x) / total(jnp.ones((1, *x.shape[1:3], 1), x.dtype))


def read_out(x: jax.Array, readout: str) -> jax.Array:
    """Features ``[n, ...]`` from images: all positions ("flatten") or their average ("mean")."""
    return x.mean((1, 2)) if readout == "mean" else x.reshape(x.shape[0], math.prod(x.shape[1:]))


def dropout(x: jax.Array, dropout_rate: float, keys: jax.Array | None) -> jax.Array:
    """Zero entries at random by ``keys [n]``, one per example, and scale up the rest; None: nothing."""
    if keys is None or dropout_rate == 0:
        return x
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - dropout_rate, x.shape[1:]))(keys)
    return jnp.where(keep, x / (1 - dropout_rate), 0)


def _widen(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _moments(x: jax.Array, axes: tuple[int, ...], axis_name: str | None) -> tuple[jax.Array, jax.Array]:
    # Two passes: E[x^2] - E[x]^2 loses digits, and clipping it at 0 halves second derivatives there.
    def mean(values: jax.Array) -> jax.Array:
        local = values.mean(axes, keepdims=True)
        return local if axis_name is None else lax.pmean(local, axis_name)

    center = mean(x)
    return center, mean(jnp.square(x - center))


def _normalize(x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
    return (x - mean) * lax.rsqrt(variance + EPSILON)
