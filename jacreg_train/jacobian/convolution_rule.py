"""The closed forms of a convolution's weight: shifted slices of the input, or Gram matrices over positions."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core
from jaxtyping import Float

from jacreg_train.jacobian import norms
from jacreg_train.jacobian.trees import squared_sum


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A convolution's shapes with batch, space, groups and features in this order."""

    params: dict[str, Any]
    kernel: tuple[int, ...]
    space: tuple[int, ...]  # of the output
    groups: int

    @classmethod
    def of(cls, eqn: core.JaxprEqn) -> Geometry:
        numbers = eqn.params["dimension_numbers"]
        kernel = tuple(eqn.invars[1].aval.shape[axis] for axis in numbers.rhs_spec[2:])
        space = tuple(eqn.outvars[0].aval.shape[axis] for axis in numbers.out_spec[2:])
        return cls(eqn.params, kernel, space, eqn.params["feature_group_count"])

    @property
    def offsets(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*map(range, self.kernel)))

    def input(self, value: Float[Array, "n ..."]) -> Float[Array, "n b *space g c"]:
        spec = self.params["dimension_numbers"].lhs_spec
        value = jnp.transpose(value, [0, *(1 + axis for axis in (spec[0], *spec[2:], spec[1]))])
        return value.reshape(*value.shape[:-1], self.groups, value.shape[-1] // self.groups)

    def output(self, value: Float[Array, "K n ..."]) -> Float[Array, "K n b *space g o"]:
        spec = self.params["dimension_numbers"].out_spec
        value = jnp.transpose(value, [0, 1, *(2 + axis for axis in (spec[0], *spec[2:], spec[1]))])
        return value.reshape(*value.shape[:-1], self.groups, value.shape[-1] // self.groups)

    def padded(self, inputs: Float[Array, "n b *space g c"]) -> Float[Array, "n b *space g c"]:
        none = (0, 0, 0)
        edges = [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(self.params["padding"], self.params["lhs_dilation"], strict=True)
        ]
        return lax.pad(inputs, jnp.zeros((), inputs.dtype), [none, none, *edges, none, none])

    def shifted(self, padded: Float[Array, "n b *space g c"], offset: tuple[int, ...]) -> Float[Array, "n b *out g c"]:
        """The input that each output position sees through the kernel entry at `offset`."""
        strides, dilation = self.params["window_strides"], self.params["rhs_dilation"]
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        limit = [s + (size - 1) * stride + 1 for s, size, stride in zip(start, self.space, strides, strict=True)]
        outer = padded.shape
        return lax.slice(padded, [0, 0, *start, 0, 0], [*outer[:2], *limit, *outer[-2:]], [1, 1, *strides, 1, 1])


def _operands(eqn, position, operands, cotangents):
    """The geometry, inputs and cotangents in its order, or None where the rule does not apply."""
    if position != 1 or not operands[0].per_example or eqn.params["batch_group_count"] != 1:
        return None
    geometry = Geometry.of(eqn)
    return geometry, geometry.input(operands[0].value), geometry.output(cotangents)


def convolution_squared_norm(eqn, position, operands, cotangents):
    """`|sum_t a_{t + offset} d_t^T|^2` summed over kernel offsets, in the form with the fewest multiply-adds."""
    found = _operands(eqn, position, operands, cotangents)
    if found is None:
        return None
    geometry, inputs, cotangents = found
    count, n, batch, *_, outputs = cotangents.shape
    groups, features = geometry.groups, inputs.shape[-1]
    positions, kernel = batch * math.prod(geometry.space), math.prod(geometry.kernel)
    by_position = _groups_first(cotangents).reshape(count, n * groups, positions, outputs)
    pixelwise = _is_pixelwise(geometry) and batch == 1
    gram_features = features + kernel if pixelwise else features * kernel
    cost = norms.explicit_cost(positions, features * kernel, outputs, count)
    if norms.gram_cost(positions, gram_features, outputs, count) < cost:
        matrix = (_gram_of_pixels if pixelwise else _gram_of_patches)(geometry, inputs)
        squares = norms.quadratic_form(matrix, by_position)
    else:
        padded = geometry.padded(inputs)
        squares = sum(
            squared_sum(norms.outer_products(_by_position(geometry.shifted(padded, offset)), by_position), 2)
            for offset in geometry.offsets
        )
    return jnp.sum(squares.reshape(count, n, groups), axis=2)


def convolution_cotangent(eqn, position, operands, cotangents):
    """The kernel's cotangent `[K, n, *kernel shape]` from shifted slices."""
    found = _operands(eqn, position, operands, cotangents)
    if found is None:
        return None
    geometry, inputs, cotangents = found
    count, n, groups, features, outputs = (
        *cotangents.shape[:2],
        geometry.groups,
        inputs.shape[-1],
        cotangents.shape[-1],
    )
    by_position = _groups_first(cotangents).reshape(count, n * groups, math.prod(cotangents.shape[2:-2]), outputs)
    padded = geometry.padded(inputs)
    slices = [
        norms.outer_products(_by_position(geometry.shifted(padded, offset)), by_position) for offset in geometry.offsets
    ]
    kernel = jnp.stack(slices, axis=2).reshape(count, n, groups, *geometry.kernel, features, outputs)
    space = len(geometry.kernel)
    kernel = jnp.moveaxis(kernel, 2, -2)  # [K, n, *kernel, c, g, o]
    kernel = kernel.reshape(*kernel.shape[:-2], groups * outputs)
    spec = eqn.params["dimension_numbers"].rhs_spec
    canonical = (*spec[2:], spec[1], spec[0])  # where each axis stands in the kernel
    order = [0, 1, *(2 + canonical.index(axis) for axis in range(space + 2))]
    return jnp.transpose(kernel, order).astype(eqn.invars[1].aval.dtype)


def _groups_first(value: Float[Array, "... b *space g o"]) -> Float[Array, "... g b *space o"]:
    """Moves the group axis of `[K, n, b, *space, g, o]` behind `n`."""
    return jnp.moveaxis(value, -2, 2)


def _by_position(value: Float[Array, "n b *space g c"]) -> Float[Array, "m T c"]:
    value = jnp.moveaxis(value, -2, 1)
    n, groups, *_, features = value.shape
    return value.reshape(n * groups, math.prod(value.shape[2:-1]), features)


def _is_pixelwise(geometry: Geometry) -> bool:
    """Whether neighbouring output positions see neighbouring pixels: stride 1 and no dilated input."""
    params = geometry.params
    return all(s == 1 for s in (*params["window_strides"], *params["lhs_dilation"]))


def _gram_of_patches(geometry: Geometry, inputs: Float[Array, "n b *space g c"]) -> Float[Array, "m T T"]:
    padded = geometry.padded(inputs)
    patches = [_by_position(geometry.shifted(padded, offset)) for offset in geometry.offsets]
    return norms.gram(jnp.concatenate(patches, axis=-1))


def _gram_of_pixels(geometry: Geometry, inputs: Float[Array, "n 1 *space g c"]) -> Float[Array, "m T T"]:
    """The patches' Gram matrix from the pixels': both positions shift together, one axis of space at a time."""
    space = inputs.shape[2:-2]
    matrix = norms.gram(_by_position(inputs))
    matrix = matrix.reshape(len(matrix), *space, *space)
    rank, params = len(space), geometry.params
    for axis in range(rank):
        low, high = params["padding"][axis]
        edges = [(0, 0, 0)] * (2 * rank + 1)
        edges[1 + axis] = edges[1 + rank + axis] = (low, high, 0)
        matrix_padded = lax.pad(matrix, jnp.zeros((), matrix.dtype), edges)
        size, dilation = geometry.space[axis], params["rhs_dilation"][axis]
        shift = lambda k, m=matrix_padded, a=axis, s=size, d=dilation: lax.slice_in_dim(
            lax.slice_in_dim(m, k * d, k * d + s, axis=1 + a), k * d, k * d + s, axis=1 + rank + a
        )
        matrix = sum(shift(k) for k in range(geometry.kernel[axis]))
    positions = math.prod(geometry.space)
    return matrix.reshape(len(matrix), positions, positions)
