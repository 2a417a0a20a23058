"""Convolutions with one kernel per example, for the explicit form of a convolution's rule.

A batch of convolutions with a kernel each is a grouped convolution, which is slow everywhere. On CPU a loop over
examples, each step one canonical convolution whose operands stay in the cache, runs at the speed of the plain batched
one. Elsewhere one matrix product per kernel entry serves all examples. The three functions are each other's
derivatives.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from jacreg_train.jacobian.convolutions import canonical_numbers, canonicalize_convolutions
from jacreg_train.jacobian.geometry import Geometry

Inputs = Float[Array, "n b *space gc"]
Kernels = Float[Array, "n *kernel c go"]
Outputs = Float[Array, "n b *out go"]


def _of_one(geometry: Geometry, x: Float[Array, "b *space gc"], kernel: Float[Array, "*kernel c go"]):
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


def _of_all(geometry: Geometry, x: Inputs, kernels: Kernels) -> Outputs:
    padded, groups = geometry.padded(x), geometry.groups
    split = lambda value: value.reshape(*value.shape[:-1], groups, value.shape[-1] // groups)
    total: Any = 0.0
    for offset in geometry.offsets:
        seen, entry = split(geometry.shifted(padded, offset)), split(kernels[(slice(None), *offset)])
        total = total + jnp.einsum("n...gc,ncgo->n...go", seen, entry, precision=geometry.precision)
    return jnp.reshape(total, (*total.shape[:-2], kernels.shape[-1]))


def _input_shape(geometry: Geometry, cotangents: Outputs, kernels: Kernels) -> tuple[int, ...]:
    n, batch = cotangents.shape[:2]
    return (n, batch, *geometry.inputs, geometry.groups * kernels.shape[-2])


def _kernel_shape(geometry: Geometry, x: Inputs, cotangents: Outputs) -> tuple[int, ...]:
    return (len(x), *geometry.kernel, x.shape[-1] // geometry.groups, cotangents.shape[-1])


def _by_platform(one, every, *operands):
    """`one` in a loop over examples on CPU, `every` on all examples at once elsewhere."""
    loop = lambda *operands: lax.map(lambda rows: canonicalize_convolutions(one)(*rows), operands)
    return lax.platform_dependent(*operands, cpu=loop, default=every)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolve_each(geometry: Geometry, x: Inputs, kernels: Kernels) -> Outputs:
    """Each example convolved with its own kernel."""
    return _by_platform(functools.partial(_of_one, geometry), functools.partial(_of_all, geometry), x, kernels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def input_gradient_each(geometry: Geometry, cotangents: Outputs, kernels: Kernels) -> Inputs:
    """The cotangent of `convolve_each`'s input."""
    shape = _input_shape(geometry, cotangents, kernels)

    def transpose(function, shape):
        x = jax.ShapeDtypeStruct(shape, cotangents.dtype)
        return lambda bar, kernel: jax.linear_transpose(lambda x: function(geometry, x, kernel), x)(bar)[0]

    return _by_platform(transpose(_of_one, shape[1:]), transpose(_of_all, shape), cotangents, kernels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def kernel_gradient_each(geometry: Geometry, x: Inputs, cotangents: Outputs) -> Kernels:
    """The cotangent of `convolve_each`'s kernels."""
    shape = _kernel_shape(geometry, x, cotangents)

    def transpose(function, shape):
        kernel = jax.ShapeDtypeStruct(shape, x.dtype)
        return lambda x, bar: jax.linear_transpose(lambda kernel: function(geometry, x, kernel), kernel)(bar)[0]

    return _by_platform(transpose(_of_one, shape[1:]), transpose(_of_all, shape), x, cotangents)


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
    lambda geometry, saved, bar: (
        input_gradient_each(geometry, saved[1], bar),
        convolve_each(geometry, saved[0], bar),
    ),
)
