"""Kernel gradients of convolutions with few multiplications, over tiles of output positions.

The kernel gradient of a 3-wide kernel is itself a short correlation: three results, one for each kernel entry, of the
cotangents' pixels in a tile with the input's. The minimal filtering algorithms (Winograd 1980; Lavin & Gray 2016,
https://arxiv.org/abs/1509.09308) take `m + 2` products for a tile of `m` positions instead of `3 m`, in each axis of
space. With tiles of four, a 3x3 kernel takes a quarter of the products. The transformations around them are sums.

    gradient = E^T [ sum over tiles of (B^T input) (D^T cotangent) ]

E evaluates a polynomial of degree 2 at the points, D one of degree 3; B is the inverse of evaluation at degree 5. In
float32 the relative error was 1.3e-6, where the direct form's was 0.4e-6 (64 channels, 32x32 positions).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from jacreg_train.jacobian.geometry import Geometry

KERNEL, TILE = 3, 4
POINTS = (0.0, 1.0, -1.0, 2.0, -0.5)  # and infinity: small values of both signs keep the rounding errors small
SIZE = len(POINTS) + 1
FEWEST_FEATURES = 8  # with 3 the transformations took longer than the products saved, with 16 not (CPU, 32x32)


def _evaluation(degree: int) -> np.ndarray:
    """The values at the points, the last at infinity, of a polynomial's coefficients: `[SIZE, degree + 1]`."""
    return np.vstack([np.vander(POINTS, degree + 1, increasing=True), np.eye(degree + 1)[-1:]])


OF_KERNEL = _evaluation(KERNEL - 1).T  # E^T
OF_COTANGENTS = _evaluation(TILE - 1)  # D^T
OF_INPUTS = np.linalg.inv(_evaluation(SIZE - 1)).T  # B^T


def serve(geometry: Geometry, features: int, cotangents: int) -> bool:
    """Whether the kernel gradients of a convolution of so many input features are cheaper over tiles.

    One cotangent must pay for the input's transformation alone: a gradient took as long as without tiles and compiled
    for longer (ResNet18, CPU).
    """
    return (
        cotangents > 1
        and geometry.is_dense
        and geometry.groups == 1
        and set(geometry.kernel) == {KERNEL}
        and set(geometry.kernel_dilation) == {1}
        and features >= FEWEST_FEATURES
        and products(geometry) < geometry.kernel_size * geometry.num_outputs
    )


def products(geometry: Geometry) -> int:
    """How many products the kernel gradient takes for each pair of an input feature and an output feature."""
    return int(np.prod([SIZE * _num_tiles(size) for size in geometry.outputs]))


def _num_tiles(size: int) -> int:
    return -(-size // TILE)


@functools.partial(jax.jit, static_argnums=0)  # so that convolutions of equal shapes are traced once
def kernel_gradient(
    geometry: Geometry, x: Float[Array, "b *space c"], cotangents: Float[Array, "b *out o"]
) -> Float[Array, "*kernel c o"]:
    """The cotangent of a convolution's kernel; bilinear in the input and the output's cotangents."""
    rank, dtype = len(geometry.outputs), x.dtype
    x, cotangents = _whole_tiles(geometry, x, cotangents)
    for axis in range(rank):  # each turn takes the next axis of space apart; its points come first
        tiles, place = _num_tiles(geometry.outputs[axis]), 1 + 2 * axis
        pixels = [lax.slice_in_dim(x, start, start + (tiles - 1) * TILE + 1, TILE, axis=place) for start in range(SIZE)]
        x = jnp.stack(_combine(OF_INPUTS, pixels))
        split = (*cotangents.shape[:place], tiles, TILE, *cotangents.shape[place + 1 :])
        cotangents = jnp.moveaxis(cotangents.reshape(split), place + 1, 0)
        cotangents = jnp.stack(_combine(OF_COTANGENTS, list(cotangents)))
    merged = lambda value: value.reshape(SIZE**rank, -1, value.shape[-1])
    sums = jnp.einsum("ptc,pto->pco", merged(x), merged(cotangents), precision=geometry.precision)
    kernel = sums.reshape(*[SIZE] * rank, *sums.shape[1:])
    for place in range(rank):
        points = [lax.index_in_dim(kernel, point, place, keepdims=False) for point in range(SIZE)]
        kernel = jnp.stack(_combine(OF_KERNEL, points), axis=place)
    return jnp.transpose(kernel, [*reversed(range(rank)), rank, rank + 1]).astype(dtype)


def _whole_tiles(geometry: Geometry, x: Array, cotangents: Array) -> tuple[Array, Array]:
    """Both with zeros at their ends: the input's padding, and what fills the last tile."""
    fill = [_num_tiles(size) * TILE - size for size in geometry.outputs]
    around = [(low, high + more, 0) for (low, high), more in zip(geometry.padding, fill, strict=True)]
    zero, whole = jnp.zeros((), x.dtype), (0, 0, 0)
    x = lax.pad(x, zero, [whole, *around, whole])
    return x, lax.pad(cotangents, zero.astype(cotangents.dtype), [whole, *[(0, more, 0) for more in fill], whole])


def _combine(matrix: np.ndarray, parts: Sequence[Array]) -> list[Array]:
    """The matrix product over a list: sums of a few terms, which cost no multiplication by zero."""
    terms = lambda row: [jnp.asarray(c, part.dtype) * part for c, part in zip(row, parts, strict=True) if c]
    return [functools.reduce(jnp.add, terms(row)) for row in matrix]
