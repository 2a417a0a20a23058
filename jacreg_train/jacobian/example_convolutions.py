"""Convolutions with one kernel per example, for the explicit form of a convolution's rule.

A batch of convolutions with a kernel each is a grouped convolution, which is slow everywhere. On CPU a loop over
examples, each step one canonical convolution whose operands stay in the cache, runs at the speed of the plain batched
one, or faster over tiles. Elsewhere one matrix product per kernel entry serves all examples. The three functions are
each other's derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from jacreg_train.jacobian import tiles
from jacreg_train.jacobian.convolutions import canonical_numbers, canonicalize_convolutions
from jacreg_train.jacobian.geometry import Geometry
from jacreg_train.jacobian.loops import map_rows

Inputs = Float[Array, "n b *space gc"]
Kernels = Float[Array, "n *kernel c go"]
Outputs = Float[Array, "n b *out go"]


def _transposed(function: Callable[[Array], Array], shape: tuple[int, ...], cotangent: Array) -> Array:
    """The cotangent of a linear function's argument of the given shape."""
    return jax.linear_transpose(function, jax.ShapeDtypeStruct(shape, cotangent.dtype))(cotangent)[0]


def _convolution_of_one(geometry: Geometry, x: Float[Array, "b *space gc"], kernel: Float[Array, "*kernel c go"]):
    return lax.conv_general_dilated(
        x,
        kernel,
        geometry.strides,
        geometry.padding,
        geometry.input_dilation,
        geometry.kernel_dilation,
        canonical_numbers(len(geometry.kernel)),
        geometry.groups,
        precision=geometry.precision,
    )


def _convolution_of_all(geometry: Geometry, x: Inputs, kernels: Kernels) -> Outputs:
    padded, groups = geometry.padded(x), geometry.groups
    split = lambda value: value.reshape(*value.shape[:-1], groups, value.shape[-1] // groups)
    total: Any = 0.0
    for offset in geometry.offsets:
        seen, entry = split(geometry.shifted(padded, offset)), split(kernels[(slice(None), *offset)])
        total = total + jnp.einsum("n...gc,ncgo->n...go", seen, entry, precision=geometry.precision)
    return jnp.reshape(total, (*total.shape[:-2], kernels.shape[-1]))


def _input_gradient_of_all(geometry: Geometry, cotangents: Outputs, kernels: Kernels) -> Inputs:
    shape = (*cotangents.shape[:2], *geometry.inputs, geometry.groups * kernels.shape[-2])
    return _transposed(lambda x: _convolution_of_all(geometry, x, kernels), shape, cotangents)


def _kernel_gradient_of_all(geometry: Geometry, x: Inputs, cotangents: Outputs) -> Kernels:
    shape = (len(x), *geometry.kernel, x.shape[-1] // geometry.groups, cotangents.shape[-1])
    return _transposed(lambda kernels: _convolution_of_all(geometry, x, kernels), shape, cotangents)


def _by_platform(one, every, *operands):
    """`one` in a loop over examples on CPU, `every` on all examples at once elsewhere."""
    loop = lambda *operands: map_rows(canonicalize_convolutions(one), operands)
    return lax.platform_dependent(*operands, cpu=loop, default=every)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolve_each(geometry: Geometry, x: Inputs, kernels: Kernels) -> Outputs:
    """Each example convolved with its own kernel."""

    def of_one(x, kernel):
        if geometry.is_tiled:
            shape = (len(x), *geometry.outputs, kernel.shape[-1])
            return _transposed(functools.partial(tiles.kernel_gradient, geometry, x), shape, kernel)
        return _convolution_of_one(geometry, x, kernel)

    return _by_platform(of_one, functools.partial(_convolution_of_all, geometry), x, kernels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def input_gradient_each(geometry: Geometry, cotangents: Outputs, kernels: Kernels) -> Inputs:
    """The cotangent of `convolve_each`'s input."""
    shape = (cotangents.shape[1], *geometry.inputs, geometry.groups * kernels.shape[-2])

    def of_one(bar, kernel):
        if geometry.is_tiled:
            return _transposed(lambda x: tiles.kernel_gradient(geometry, x, bar), shape, kernel)
        return _transposed(lambda x: _convolution_of_one(geometry, x, kernel), shape, bar)

    return _by_platform(of_one, functools.partial(_input_gradient_of_all, geometry), cotangents, kernels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def kernel_gradient_each(geometry: Geometry, x: Inputs, cotangents: Outputs) -> Kernels:
    """The cotangent of `convolve_each`'s kernels."""
    shape = (*geometry.kernel, x.shape[-1] // geometry.groups, cotangents.shape[-1])

    def of_one(x, bar):
        if geometry.is_tiled:
            return tiles.kernel_gradient(geometry, x, bar)
        return _transposed(lambda kernel: _convolution_of_one(geometry, x, kernel), shape, bar)

    return _by_platform(of_one, functools.partial(_kernel_gradient_of_all, geometry), x, cotangents)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pull_kernel_gradient_each(geometry: Geometry, x: Inputs, cotangents: Outputs, bars: Kernels):
    """The cotangents of `kernel_gradient_each`'s operands, in one loop: over tiles they share transformations."""

    def of_one(x, cotangent, bar):
        if geometry.is_tiled:
            return jax.vjp(functools.partial(tiles.kernel_gradient, geometry), x, cotangent)[1](bar)
        of_input = lambda x: _convolution_of_one(geometry, x, bar)
        return _transposed(of_input, x.shape, cotangent), of_input(x)

    def of_all(x, cotangents, bars):
        return _input_gradient_of_all(geometry, cotangents, bars), _convolution_of_all(geometry, x, bars)

    return _by_platform(of_one, of_all, x, cotangents, bars)


def _pull_separately(geometry: Geometry, x: Inputs, cotangents: Outputs, bars: Kernels):
    return input_gradient_each(geometry, cotangents, bars), convolve_each(geometry, x, bars)


_pull_kernel_gradient_each.defvjp(
    lambda geometry, *operands: (_pull_kernel_gradient_each(geometry, *operands), operands),
    lambda geometry, operands, bar: jax.vjp(functools.partial(_pull_separately, geometry), *operands)[1](bar),
)
convolve_each.defvjp(
    lambda geometry, x, kernels: (convolve_each(geometry, x, kernels), (x, kernels)),
    lambda geometry, saved, bar: (
        input_gradient_each(geometry, bar, saved[1]),
        kernel_gradient_each(geometry, saved[0], bar),
    ),
)
input_gradient_each.defvjp(
    lambda geometry, cotangents, kernels: (
        input_gradient_each(geometry, cotangents, kernels),
        (cotangents, kernels),
    ),
    lambda geometry, saved, bar: (
        convolve_each(geometry, bar, saved[1]),
        kernel_gradient_each(geometry, bar, saved[0]),
    ),
)
kernel_gradient_each.defvjp(
    lambda geometry, x, cotangents: (kernel_gradient_each(geometry, x, cotangents), (x, cotangents)),
    lambda geometry, saved, bar: _pull_kernel_gradient_each(geometry, *saved, bar),
)
