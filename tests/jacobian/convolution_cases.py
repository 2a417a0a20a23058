"""A sweep of convolutions: all settings of one axis, and combinations of them in two and three dimensions."""

from __future__ import annotations

import dataclasses
import itertools
import random

import jax.numpy as jnp
from jax import lax

from tests.jacobian.cases import Case, normal, weights

SIZES = {1: (5,), 2: (4, 5), 3: (3, 4, 3)}
LAYOUTS = {
    1: [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("WNC", "IWO", "NCW")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HNCW", "IHOW", "CWNH")],
    3: [("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW"), ("DNHCW", "ODIHW", "WNDCH")],
}
PADDINGS: tuple[str | tuple[int, int], ...] = ("SAME", "VALID", (2, 0), (1, 3), (-1, 2), (-1, -1))


@dataclasses.dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution. A kernel of 7 is bigger than any input."""

    kernel: int
    stride: int
    lhs_dilation: int
    rhs_dilation: int
    padding: str | tuple[int, int]

    def pads(self, size: int) -> tuple[int, int]:
        if not isinstance(self.padding, str):
            return self.padding
        size, kernel = (size - 1) * self.lhs_dilation + 1, (self.kernel - 1) * self.rhs_dilation + 1
        return lax.padtype_to_pads((size,), (kernel,), (self.stride,), self.padding)[0]


@dataclasses.dataclass(frozen=True)
class Convolution:
    """One member of the sweep."""

    axes: tuple[Axis, ...]
    groups: int
    features: tuple[int, int]  # in and out, for each group
    layout: tuple[str, str, str]

    def __str__(self) -> str:
        axes = "x".join(
            f"k{a.kernel}s{a.stride}l{a.lhs_dilation}r{a.rhs_dilation}p{a.padding}".replace(" ", "") for a in self.axes
        )
        return f"{axes}-g{self.groups}-f{self.features[0]}:{self.features[1]}-{'.'.join(self.layout)}"

    def case(self) -> Case:
        """Two convolutions, one with a kernel of its own, one with a product of weights, summed over space."""
        sizes, (into, out) = SIZES[len(self.axes)], self.features
        layout = lax.ConvDimensionNumbers(*(tuple(spec.index(c) for c in _order(spec)) for spec in self.layout))

        def convolve(x, kernel):
            return lax.conv_general_dilated(
                x,
                kernel,
                [axis.stride for axis in self.axes],
                [axis.pads(size) for axis, size in zip(self.axes, sizes, strict=True)],
                [axis.lhs_dilation for axis in self.axes],
                [axis.rhs_dilation for axis in self.axes],
                layout,
                self.groups,
            )

        def apply(p, x):
            x = jnp.transpose(x, [_order(self.layout[0]).index(c) for c in self.layout[0]])
            y = jnp.sin(convolve(x, p["w"])) + jnp.cos(convolve(x, p["v"] * p["s"]))
            space = [i for i, c in enumerate(self.layout[2]) if c not in "NC"]
            y = jnp.sum(y, axis=space)
            return y if self.layout[2].index("N") < self.layout[2].index("C") else y.T

        dimensions = {"I": into, "O": out * self.groups, **_spatial(self.layout[1], [a.kernel for a in self.axes])}
        kernel = tuple(dimensions[c] for c in self.layout[1])
        return apply, weights(w=kernel, v=kernel, s=()), normal(0, 2, into * self.groups, *sizes)


def _order(spec: str) -> str:
    """Batch and feature (or output and input feature), then space."""
    return ("OI" if "O" in spec else "NC") + "".join(c for c in "DHW" if c in spec)


def _spatial(spec: str, values: list[int]) -> dict[str, int]:
    return dict(zip([c for c in "DHW" if c in spec], values, strict=True))


def sweep() -> list[Convolution]:
    """All settings of one axis with three group counts, then two hundred in 2-D and one hundred in 3-D."""
    draw = random.Random(0)
    numbers = itertools.product((1, 2, 3, 5, 7), (1, 2), (1, 2), (1, 2))
    axes = [Axis(*settings, padding) for settings in numbers for padding in PADDINGS]
    spaces: list[tuple[Axis, ...]] = [(axis,) for axis in axes]
    spaces += [(draw.choice(axes), draw.choice(axes)) for _ in range(200)]
    small = [axis for axis in axes if axis.kernel <= 3]
    spaces += [tuple(draw.choice(small) for _ in range(3)) for _ in range(100)]
    return [
        Convolution(space, groups, features, draw.choice(LAYOUTS[len(space)]))
        for space in spaces
        for groups in ((1, 2, 3) if len(space) == 1 else (draw.choice((1, 2, 3)),))
        for features in [(1, draw.choice((1, 2))) if groups == 3 else (draw.choice((1, 2, 5)), draw.choice((1, 2, 4)))]
    ]


CONVOLUTIONS = {str(convolution): convolution for convolution in sweep()}
SAMPLE = sorted(random.Random(1).sample(sorted(CONVOLUTIONS), 25))
