"""ResNet18 in Flax NNX (He et al. 2015, https://arxiv.org/abs/1512.03385)."""

import jax
from flax import nnx

from models import arguments, layers
from models.adapters import nnx_functions
from models.contract import Model, build_model
from models.nnx_layers import ConvNorm

STEMS = ("3x3", "imagenet")
BLOCKS_PER_STAGE = (2, 2, 2, 2)


class Block(nnx.Module):
    """Two 3x3 convolutions beside a shortcut, which is the identity wherever shapes allow."""

    def __init__(self, width_in: int, width: int, *, stride: int, norm: str, rngs: nnx.Rngs) -> None:
        self.first = ConvNorm(width_in, width, kernel_size=3, stride=stride, padding=1, norm=norm, rngs=rngs)
        self.second = ConvNorm(width, width, kernel_size=3, stride=1, padding=1, norm=norm, rngs=rngs)
        self.projects = stride != 1 or width_in != width
        if self.projects:
            self.shortcut = ConvNorm(width_in, width, kernel_size=1, stride=stride, padding=0, norm=norm, rngs=rngs)

    def __call__(self, x: jax.Array, *, train: bool, axis_name: str | None) -> jax.Array:
        shortcut = self.shortcut(x, train=train, axis_name=axis_name) if self.projects else x
        x = nnx.relu(self.first(x, train=train, axis_name=axis_name))
        return nnx.relu(self.second(x, train=train, axis_name=axis_name) + shortcut)


class ResNet18(nnx.Module):
    """See ``resnet18``."""

    def __init__(self, channels: int, *, num_classes: int, stem: str, norm: str, width: int, rngs: nnx.Rngs) -> None:
        kernel_size, stride = {"3x3": (3, 1), "imagenet": (7, 2)}[stem]
        self.stem = ConvNorm(
            channels,
            width,
            kernel_size=kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            norm=norm,
            rngs=rngs,
        )
        self.pools = stem == "imagenet"
        blocks = []
        for stage, num_blocks in enumerate(BLOCKS_PER_STAGE):
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                width_out = width * 2**stage
                width_in = width_out // stride
                blocks.append(Block(width_in, width_out, stride=stride, norm=norm, rngs=rngs))
        self.blocks = nnx.List(blocks)
        self.output = nnx.Linear(width_out, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array, *, train: bool, keys: jax.Array | None, axis_name: str | None) -> jax.Array:
        x = nnx.relu(self.stem(x, train=train, axis_name=axis_name))
        if self.pools:
            x = nnx.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for block in self.blocks:
            x = block(x, train=train, axis_name=axis_name)
        return self.output(layers.read_out(x, "mean"))


def resnet18(
    *,
    num_classes: int,
    stem: str = "3x3",
    norm: str = "group",
    width: int = 64,
    dtype: str | None = None,
) -> Model:
    """ResNet18 with the padding and the parameter counts of the usual implementations.

    Args:
        num_classes: the number of logits.
        stem: "3x3" (one convolution at full resolution, for small images) or "imagenet" (a 7x7 convolution
            and a max-pooling, each at stride 2).
        norm: "group" (groups of 16 channels or a little more) or "batch".
        width: channels of the first stage; the last has eight times as many.
        dtype: what to compute in, "float32", "bfloat16" or "float16"; None: as the parameters.

    Raises:
        ValueError: a value is not among the choices.
    """
    name = "resnet18"
    sizes = {
        "num_classes": arguments.positive_int(name, "num_classes", num_classes),
        "stem": arguments.one_of(name, "stem", stem, STEMS),
        "norm": arguments.one_of(name, "norm", norm, ("group", "batch")),
        "width": arguments.positive_int(name, "width", width),
    }
    return build_model(
        name,
        *nnx_functions(lambda image_shape, rngs: ResNet18(image_shape[-1], **sizes, rngs=rngs)),
        dtype=arguments.compute_dtype(name, dtype),
        joint_in_training=norm == "batch",
        stochastic_in_training=False,
    )
