"""The closed forms of a convolution's weight: each example's kernel gradient, or Gram matrices over positions."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core
from jaxtyping import Float

from jacreg_train.jacobian import norms, tiles
from jacreg_train.jacobian.example_convolutions import kernel_gradient_each
from jacreg_train.jacobian.geometry import Geometry
from jacreg_train.jacobian.trees import accumulation_dtype


def convolution_form(eqn: core.JaxprEqn, cotangents: int) -> norms.Form:
    """The form that serves the kernel of this convolution."""
    geometry, numbers = Geometry.of(eqn), eqn.params["dimension_numbers"]
    features = eqn.invars[0].aval.shape[numbers.lhs_spec[1]] // geometry.groups
    outputs = eqn.outvars[0].aval.shape[numbers.out_spec[1]] // geometry.groups
    batch = eqn.outvars[0].aval.shape[numbers.out_spec[0]]
    positions, patch = batch * geometry.num_outputs, features * geometry.kernel_size
    gram_features = features + geometry.kernel_size if _is_pixelwise(geometry, batch) else patch
    form = norms.cheapest_form(positions, patch, outputs, cotangents, gram_features)
    if form.name == "kernel gradient" and tiles.serve(geometry, features, cotangents):
        return form._replace(cost=3 * cotangents * batch * tiles.products(geometry) * features * outputs)
    return form._replace(cost=geometry.groups * form.cost)


def _is_pixelwise(geometry: Geometry, batch: int) -> bool:
    """Whether the patches' Gram matrix comes from the pixels'."""
    return geometry.is_dense and batch == 1


def convolution_squared_norm(eqn, position, operands, cotangents):
    """`|sum_t patch_t d_t^T|^2` over output positions t, in the form with the fewest multiply-adds."""
    if not _applies(eqn, position, operands):
        return None
    geometry, inputs = Geometry.of(eqn), _inputs(eqn, operands)
    cotangents = _channels_last(cotangents, eqn.params["dimension_numbers"].out_spec, 2)
    count, _, batch, *_ = cotangents.shape
    if convolution_form(eqn, count).name != "kernel gradient":  # one position is a Gram matrix of one entry
        gram = _gram_of_pixels if _is_pixelwise(geometry, batch) else _gram_of_patches
        gram = functools.partial(gram, geometry)
        return norms.gram_norms(gram, inputs, _by_position(cotangents, geometry.groups, 2))
    kernels = _kernel_gradients(geometry, inputs, cotangents)
    return jnp.sum(jnp.square(kernels), axis=[*range(1, kernels.ndim - 2), kernels.ndim - 1]).T


def convolution_cotangent(eqn, position, operands, cotangents):
    """The kernel's cotangent `[K, n, *kernel shape]`."""
    if not _applies(eqn, position, operands):
        return None
    numbers = eqn.params["dimension_numbers"]
    cotangents = _channels_last(cotangents, numbers.out_spec, 2)
    kernels = _kernel_gradients(Geometry.of(eqn), _inputs(eqn, operands), cotangents)
    kernels = jnp.moveaxis(kernels, -2, 0)  # [K, n, *kernel, c, g, o]
    kernels = kernels.reshape(*kernels.shape[:-2], math.prod(kernels.shape[-2:]))
    canonical = (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    order = [0, 1, *(2 + canonical.index(axis) for axis in range(len(canonical)))]
    return jnp.transpose(kernels, order).astype(eqn.invars[1].aval.dtype)


def _applies(eqn, position, operands) -> bool:
    empty = eqn.outvars[0].aval.size == 0
    return position == 1 and operands[0].per_example and eqn.params["batch_group_count"] == 1 and not empty


def _inputs(eqn, operands) -> Float[Array, "n b *space gc"]:
    return _channels_last(operands[0].value, eqn.params["dimension_numbers"].lhs_spec, 1)


def _channels_last(value: Array, spec: tuple[int, ...], leading: int) -> Array:
    """The axes behind the `leading` ones in the order batch, space, features."""
    order = (spec[0], *spec[2:], spec[1])
    return jnp.transpose(value, [*range(leading), *(leading + axis for axis in order)])


def _kernel_gradients(
    geometry: Geometry, inputs: Float[Array, "n b *space gc"], cotangents: Float[Array, "K n b *out go"]
) -> Float[Array, "n *kernel c g K o"]:
    """Each example's kernel gradients in float32 or wider; the cotangents count as output features."""
    dtype, groups = accumulation_dtype(cotangents.dtype), geometry.groups
    count, *middle, outputs = cotangents.shape
    cotangents = jnp.moveaxis(cotangents.reshape(count, *middle, groups, outputs // groups), 0, -2)
    merged = cotangents.reshape(*middle, count * outputs).astype(dtype)
    is_tiled = tiles.serve(geometry, inputs.shape[-1], count)
    kernels = kernel_gradient_each(dataclasses.replace(geometry, is_tiled=is_tiled), inputs.astype(dtype), merged)
    return kernels.reshape(*kernels.shape[:-1], groups, count, outputs // groups)


def _by_position(value: Array, groups: int, leading: int) -> Array:
    """`[..., n, b, *space, g f]` as blocks `[..., n, g, T, f]`; the first `leading` axes include `n`."""
    *outer, features = value.shape
    value = jnp.moveaxis(value.reshape(*outer, groups, features // groups), -2, leading)
    return value.reshape(*outer[:leading], groups, math.prod(outer[leading:]), features // groups)


def _gram_of_patches(geometry: Geometry, inputs: Float[Array, "n b *space gc"]) -> Float[Array, "n g T T"]:
    padded = geometry.padded(inputs)
    patches = [_by_position(geometry.shifted(padded, offset), geometry.groups, 1) for offset in geometry.offsets]
    return norms.gram(jnp.concatenate(patches, axis=-1))


def _gram_of_pixels(geometry: Geometry, inputs: Float[Array, "n 1 *space gc"]) -> Float[Array, "n g T T"]:
    """The patches' Gram matrix from the pixels': both positions shift together, one axis of space at a time."""
    matrix = norms.gram(_by_position(inputs, geometry.groups, 1))
    rank = len(geometry.inputs)
    blocks = matrix.shape[:2]
    matrix = matrix.reshape(*blocks, *geometry.inputs, *geometry.inputs)
    for axis in range(rank):
        taps = (geometry.kernel[axis], geometry.kernel_dilation[axis])
        matrix = _diagonal_sum((2 + axis, 2 + rank + axis), taps, geometry.padding[axis], matrix)
    return matrix.reshape(*blocks, geometry.num_outputs, geometry.num_outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _diagonal_sum(axes: tuple[int, int], taps: tuple[int, int], padding: tuple[int, int], matrix: Array) -> Array:
    """`sum_k M[t + k d, s + k d]` of the padded matrix along two axes alike, over the taps: how many, and dilation d.

    Its transpose is the same sum with the padding that is left over. JAX would pad, and keep, every term by itself.
    """
    (count, dilation), (low, high) = taps, padding
    edges = [(low, high, 0) if axis in axes else (0, 0, 0) for axis in range(matrix.ndim)]
    matrix = lax.pad(matrix, jnp.zeros((), matrix.dtype), edges)
    size = matrix.shape[axes[0]] - (count - 1) * dilation
    return functools.reduce(jnp.add, [_slice_axes(matrix, axes, k * dilation, size) for k in range(count)])


def _diagonal_sum_backward(axes, taps, padding, _, bar):
    reach = (taps[0] - 1) * taps[1]
    return (_diagonal_sum(axes, taps, (reach - padding[0], reach - padding[1]), bar),)


_diagonal_sum.defvjp(lambda *arguments: (_diagonal_sum(*arguments), None), _diagonal_sum_backward)


def _slice_axes(value: Array, axes: tuple[int, ...], start: int, size: int) -> Array:
    for axis in axes:
        value = lax.slice_in_dim(value, start, start + size, axis=axis)
    return value
