"""A convolution's shapes and strides, with its axes in one order: batch, space, groups, features."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core
from jaxtyping import Float

Pairs = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Geometry:
    """What a convolution does in space; sizes of batch and features are read off its arrays."""

    kernel: tuple[int, ...]
    inputs: tuple[int, ...]  # size of the input's space
    outputs: tuple[int, ...]  # size of the output's space
    strides: tuple[int, ...]
    padding: Pairs
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    groups: int
    precision: Any
    is_tiled: bool = False  # whether kernel gradients are taken over tiles, see tiles.py

    @classmethod
    def of(cls, eqn: core.JaxprEqn) -> Geometry:
        numbers, params = eqn.params["dimension_numbers"], eqn.params
        size = lambda atom, spec: tuple(atom.aval.shape[axis] for axis in spec[2:])
        return cls(
            kernel=size(eqn.invars[1], numbers.rhs_spec),
            inputs=size(eqn.invars[0], numbers.lhs_spec),
            outputs=size(eqn.outvars[0], numbers.out_spec),
            strides=tuple(params["window_strides"]),
            padding=tuple(map(tuple, params["padding"])),
            input_dilation=tuple(params["lhs_dilation"]),
            kernel_dilation=tuple(params["rhs_dilation"]),
            groups=params["feature_group_count"],
            precision=params["precision"],
        )

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        """Of the kernel's entries in space."""
        return list(itertools.product(*map(range, self.kernel)))

    @property
    def kernel_size(self) -> int:
        return math.prod(self.kernel)

    @property
    def num_outputs(self) -> int:
        """How many output positions there are."""
        return math.prod(self.outputs)

    @property
    def is_dense(self) -> bool:
        """Whether neighbouring output positions see neighbouring pixels: stride 1 and no dilated input."""
        return all(s == 1 for s in (*self.strides, *self.input_dilation))

    def padded(self, inputs: Float[Array, "n b *space f"]) -> Float[Array, "n b *padded f"]:
        """The input with its zeros around and between the pixels."""
        edges = [(low, high, d - 1) for (low, high), d in zip(self.padding, self.input_dilation, strict=True)]
        whole = (0, 0, 0)
        return lax.pad(inputs, jnp.zeros((), inputs.dtype), [whole, whole, *edges, whole])

    def shifted(self, padded: Float[Array, "n b *padded f"], offset: tuple[int, ...]) -> Float[Array, "n b *out f"]:
        """The padded input that each output position sees through the kernel's entry at `offset`."""
        start = [o * d for o, d in zip(offset, self.kernel_dilation, strict=True)]
        limit = [s + (n - 1) * step + 1 for s, n, step in zip(start, self.outputs, self.strides, strict=True)]
        n, batch, *_, features = padded.shape
        return lax.slice(padded, [0, 0, *start, 0], [n, batch, *limit, features], [1, 1, *self.strides, 1])
