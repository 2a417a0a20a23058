"""The convolutional network in Haiku: the same function as ``cnn`` for the same parameters."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from models import layers
from models.adapters import haiku_functions
from models.cnn_architecture import CNNArchitecture, cnn_factory

HE_NORMAL = hk.initializers.VarianceScaling(2.0)


class GroupNorm(hk.Module):
    """``layers.group_norm`` with its parameters."""

    def __call__(self, x: jax.Array, *, train: bool, axis_name: str | None) -> jax.Array:
        return layers.group_norm(x, *_scale_and_bias(x))


class BatchNorm(hk.Module):
    """``layers.batch_norm`` with its parameters and running statistics."""

    def __call__(self, x: jax.Array, *, train: bool, axis_name: str | None) -> jax.Array:
        running = (
            hk.get_state("mean", x.shape[-1:], jnp.float32, jnp.zeros),
            hk.get_state("variance", x.shape[-1:], jnp.float32, jnp.ones),
        )
        parameters = _scale_and_bias(x)
        x, mean, variance = layers.batch_norm(x, *parameters, *running, train=train, axis_name=axis_name)
        hk.set_state("mean", mean)
        hk.set_state("variance", variance)
        return x


def _scale_and_bias(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    width = x.shape[-1:]
    return hk.get_parameter("scale", width, init=jnp.ones), hk.get_parameter("bias", width, init=jnp.zeros)


def network(
    x: jax.Array,
    architecture: CNNArchitecture,
    *,
    train: bool,
    keys: jax.Array | None,
    axis_name: str | None,
) -> jax.Array:
    """See ``cnn_factory``."""
    norms: dict[str, Any] = {"group": GroupNorm, "batch": BatchNorm}
    for layer, width in enumerate(architecture.widths):
        x = hk.Conv2D(
            width,
            architecture.kernel_size,
            stride=architecture.conv_stride(layer),
            with_bias=architecture.norm == "none",
            w_init=HE_NORMAL,
            name=f"conv_{layer}",
        )(x)
        if architecture.norm != "none":
            norm = norms[architecture.norm](name=f"norm_{layer}")
            x = norm(x, train=train, axis_name=axis_name)
        x = jax.nn.relu(x)
        if architecture.pools(layer):
            x = layers.pool(x, architecture.pooling, architecture.strides[layer])
    x = layers.read_out(x, architecture.readout)
    if architecture.dense_width is not None:
        x = jax.nn.relu(hk.Linear(architecture.dense_width, w_init=HE_NORMAL, name="dense")(x))
    x = layers.dropout(x, architecture.dropout_rate, keys)
    return hk.Linear(architecture.num_classes, name="output")(x)


haiku_cnn = cnn_factory(
    "haiku_cnn",
    lambda architecture: haiku_functions(lambda x, **mode: network(x, architecture, **mode)),
)
