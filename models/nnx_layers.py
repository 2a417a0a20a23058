"""Flax NNX modules that both networks here are made of."""

import jax
import jax.numpy as jnp
from flax import nnx

from models import layers

HE_NORMAL = nnx.initializers.he_normal()


class GroupNorm(nnx.Module):
    """``layers.group_norm`` with its parameters."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

    def __call__(self, x: jax.Array, *, train: bool, axis_name: str | None) -> jax.Array:
        return layers.group_norm(x, self.scale[...], self.bias[...])


class BatchNorm(nnx.Module):
    """``layers.batch_norm`` with its parameters and running statistics."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(width, jnp.float32))
        self.variance = nnx.BatchStat(jnp.ones(width, jnp.float32))

    def __call__(self, x: jax.Array, *, train: bool, axis_name: str | None) -> jax.Array:
        parameters = self.scale[...], self.bias[...]
        running = self.mean[...], self.variance[...]
        x, mean, variance = layers.batch_norm(x, *parameters, *running, train=train, axis_name=axis_name)
        self.mean[...], self.variance[...] = mean, variance
        return x


class ConvNorm(nnx.Module):
    """A convolution without bias and its normalisation; or, with norm "none", a convolution with bias."""

    def __init__(
        self,
        width_in: int,
        width: int,
        *,
        kernel_size: int,
        stride: int,
        norm: str,
        rngs: nnx.Rngs,
        padding: str | int = "SAME",
    ) -> None:
        self.conv = nnx.Conv(
            width_in,
            width,
            (kernel_size, kernel_size),
            strides=stride,
            padding=padding,
            use_bias=norm == "none",
            kernel_init=HE_NORMAL,
            rngs=rngs,
        )
        if norm != "none":
            self.norm = {"group": GroupNorm, "batch": BatchNorm}[norm](width)
        self.has_norm = norm != "none"

    def __call__(self, x: jax.Array, *, train: bool, axis_name: str | None) -> jax.Array:
        x = self.conv(x)
        return self.norm(x, train=train, axis_name=axis_name) if self.has_norm else x
