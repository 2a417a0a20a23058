"""The convolutional network in Flax NNX."""

import jax
from flax import nnx

from models import layers
from models.adapters import nnx_functions
from models.cnn_architecture import CNNArchitecture, cnn_factory
from models.nnx_layers import HE_NORMAL, ConvNorm


class CNN(nnx.Module):
    """See ``cnn_factory``."""

    def __init__(self, image_shape: tuple[int, ...], architecture: CNNArchitecture, rngs: nnx.Rngs) -> None:
        height, width, channels = image_shape
        convs = []
        for layer, width_out in enumerate(architecture.widths):
            convs.append(
                ConvNorm(
                    channels,
                    width_out,
                    kernel_size=architecture.kernel_size,
                    stride=architecture.conv_stride(layer),
                    norm=architecture.norm,
                    rngs=rngs,
                )
            )
            channels = width_out
            height, width = (-(-size // architecture.strides[layer]) for size in (height, width))
        features = height * width * channels if architecture.readout == "flatten" else channels
        self.convs = nnx.List(convs)
        if architecture.dense_width is not None:
            self.dense = nnx.Linear(features, architecture.dense_width, kernel_init=HE_NORMAL, rngs=rngs)
            features = architecture.dense_width
        self.output = nnx.Linear(features, architecture.num_classes, rngs=rngs)
        self.architecture = architecture

    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None, axis_name: str | None) -> jax.Array:
        architecture = self.architecture
        for layer, conv in enumerate(self.convs):
            x = nnx.relu(conv(x, train=train, axis_name=axis_name))
            if architecture.pools(layer):
                x = layers.pool(x, architecture.pooling, architecture.strides[layer])
        x = layers.read_out(x, architecture.readout)
        if architecture.dense_width is not None:
            x = nnx.relu(self.dense(x))
        return self.output(layers.dropout(x, architecture.dropout_rate, keys))


cnn = cnn_factory(
    "cnn",
    lambda architecture: nnx_functions(lambda image_shape, rngs: CNN(image_shape, architecture, rngs)),
)
