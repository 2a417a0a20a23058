"""The plain convolutional network, as arguments that every library's version shares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models import arguments
from models.contract import Forward, Init, Model, build_model
from models.layers import NORMS, POOLINGS, READOUTS


@dataclass(frozen=True)
class CNNArchitecture:
    """Checked arguments of a convolutional network; ``cnn_factory`` documents them."""

    num_classes: int
    widths: tuple[int, ...]
    strides: tuple[int, ...]
    kernel_size: int
    pooling: str
    readout: str
    dense_width: int | None
    norm: str
    dropout_rate: float

    def conv_stride(self, layer: int) -> int:
        """The stride of a convolution; 1 where pooling takes its place."""
        return self.strides[layer] if self.pooling == "none" else 1

    def pools(self, layer: int) -> bool:
        return self.pooling != "none" and self.strides[layer] > 1


def cnn_factory(name: str, library: Callable[[CNNArchitecture], tuple[Init, Forward]]) -> Callable[..., Model]:
    """The factory of the model ``name``, given how a library turns an architecture into functions."""

    def factory(
        *,
        num_classes: int,
        widths: Sequence[int] = (32, 64, 64),
        strides: Sequence[int] = (1, 2, 2),
        kernel_size: int = 3,
        pooling: str = "none",
        readout: str = "flatten",
        dense_width: int | None = 128,
        norm: str = "none",
        dropout_rate: float = 0.0,
        dtype: str | None = None,
    ) -> Model:
        """Convolutions with relu, a readout, at most one hidden dense layer, dropout, logits.

        The default has three convolutions. Eight of them, with 491,274 parameters for RGB images and ten
        classes: ``widths=(32, 64, 64, 64, 96, 96, 128, 128), strides=(1, 1, 2, 1, 2, 1, 2, 1),
        readout="mean", dense_width=None``.

        Args:
            num_classes: the number of logits.
            widths: channels of each convolution; their number is the number of convolutions.
            strides: by how much each convolution shrinks the image, one for each of ``widths``.
            kernel_size: of every convolution; borders are padded with zeros ("SAME").
            pooling: what shrinks the image: "none" (the convolution's stride), "max" or "average" (after the
                relu, in windows as large as the stride).
            readout: "flatten" all positions, or their "mean".
            dense_width: units of the hidden dense layer; None: no such layer.
            norm: "none", "group" (groups of 16 channels or a little more) or "batch", after each convolution.
            dropout_rate: the share of the last layer's inputs set to zero in training, in [0, 1).
            dtype: what to compute in, "float32", "bfloat16" or "float16"; None: as the parameters.

        Raises:
            ValueError: a value is not among the choices, or ``strides`` and ``widths`` differ in length.
        """
        architecture = CNNArchitecture(
            num_classes=arguments.positive_int(name, "num_classes", num_classes),
            widths=arguments.positive_ints(name, "widths", widths),
            strides=arguments.positive_ints(name, "strides", strides),
            kernel_size=arguments.positive_int(name, "kernel_size", kernel_size),
            pooling=arguments.one_of(name, "pooling", pooling, POOLINGS),
            readout=arguments.one_of(name, "readout", readout, READOUTS),
            dense_width=None if dense_width is None else arguments.positive_int(name, "dense_width", dense_width),
            norm=arguments.one_of(name, "norm", norm, NORMS),
            dropout_rate=arguments.rate(name, "dropout_rate", dropout_rate),
        )
        if len(architecture.strides) != len(architecture.widths):
            raise ValueError(
                f"{name}: strides={architecture.strides} must have one entry for each of widths={architecture.widths}"
            )
        return build_model(
            name,
            *library(architecture),
            dtype=arguments.compute_dtype(name, dtype),
            joint_in_training=norm == "batch" and len(architecture.widths) > 0,
            stochastic_in_training=architecture.dropout_rate > 0,
        )

    factory.__name__ = factory.__qualname__ = name
    return factory
