"""Squared norms of sums of outer products, `|sum_t a_t d_t^T|^2`, in the cheaper of their forms.

The weight gradient of a dense layer or a convolution for one example is `A^T D`, with activations `A [T, C]` and
output cotangents `D [T, O]` at `T` positions. Its squared norm is `|A^T D|^2 = <A A^T, D D^T>`: either the gradient is
formed (`T C O` multiply-adds) or the Gram matrices over positions are (`T^2 (C + O)`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Shaped

from jacreg_train.jacobian.loops import map_rows
from jacreg_train.jacobian.trees import accumulation_dtype, squared_sum

MATRICES = 2**21  # entries of Gram matrices at a time: 8 MiB in float32, which caches hold and which fill a GPU


class Form(NamedTuple):
    """How a squared norm is computed, and its multiply-adds for one example, value and gradient together."""

    name: str
    cost: int


def cheapest_form(
    positions: int, features: int, outputs: int, cotangents: int, gram_features: int | None = None
) -> Form:
    """The form with the fewest multiply-adds.

    Args:
        positions, features, outputs: `T`, `C` and `O`.
        cotangents: how many cotangents share the activations.
        gram_features: multiply-adds for one entry of the activations' Gram matrix, where it is not `C`.
    """
    gram_features = features if gram_features is None else gram_features
    if positions == 1:
        return Form("outer product", 3 * (features + cotangents * outputs))
    explicit = Form("kernel gradient", 3 * cotangents * positions * features * outputs)
    return min(
        Form("gram matrices", 2 * positions**2 * (gram_features + cotangents * outputs)),
        explicit,
        key=lambda form: form.cost,
    )


def outer_product_norms(
    activations: Float[Array, "n b T C"], cotangents: Float[Array, "K n b T O"]
) -> Float[Array, "K n"]:
    """`|sum_t a_t d_t^T|^2` for `K` cotangents, summed over the `b` blocks of each example."""
    (*_, positions, features), (count, *_, outputs) = activations.shape, cotangents.shape
    form = cheapest_form(positions, features, outputs, count).name
    if form == "outer product":
        return jnp.sum(squared_sum(activations, 2) * squared_sum(cotangents, 3), axis=2)
    if form == "gram matrices":
        return gram_norms(gram, activations, cotangents)
    return squared_sum(outer_products(activations, cotangents), 2)


def outer_products(
    activations: Float[Array, "n b T C"], cotangents: Float[Array, "K n b T O"]
) -> Float[Array, "K n b C O"]:
    """`sum_t a_t d_t^T`, in float32 or wider."""
    dtype = accumulation_dtype(cotangents.dtype)
    return jnp.einsum("nbtc,knbto->knbco", activations, cotangents, preferred_element_type=dtype)


@jax.custom_vjp
def gram(activations: Float[Array, "n b T C"]) -> Float[Array, "n b T T"]:
    """`A A^T`, whose gradient costs one product instead of two."""
    dtype = accumulation_dtype(activations.dtype)
    return jnp.einsum("nbtc,nbsc->nbts", activations, activations, preferred_element_type=dtype)


def _gram_backward(activations, bar):
    symmetric = bar + jnp.swapaxes(bar, -1, -2)
    return (jnp.einsum("nbts,nbsc->nbtc", symmetric, activations.astype(bar.dtype)).astype(activations.dtype),)


gram.defvjp(lambda activations: (gram(activations), activations), _gram_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gram_norms(
    gram_of: Callable[[Array], Float[Array, "n b T T"]],
    rows: Shaped[Array, "n ..."],
    cotangents: Float[Array, "K n b T O"],
) -> Float[Array, "K n"]:
    """`<D, P D>` for the symmetric matrices `P = gram_of(rows)`, summed over the `b` blocks of each example.

    The product `P D` of the value also is half the gradient by `D`, and the gradient by `P` needs `D` only. So no
    matrix is kept, and as few examples at a time have theirs made as fill `MATRICES` entries.
    """
    return _gram_norms_forward(gram_of, rows, cotangents)[0]


def _gram_norms_forward(gram_of, rows, cotangents):
    def of_some(rows, cotangents):
        matrix = gram_of(rows)
        product = jnp.einsum("nbts,knbso->knbto", matrix, cotangents.astype(matrix.dtype))
        return jnp.sum(product * cotangents, axis=(2, 3, 4)), product

    squares, product = _few_at_a_time(of_some, _matrix_size(cotangents), (rows, cotangents), (0, 1), (1, 1))
    return squares, (rows, cotangents, product)


def _gram_norms_backward(gram_of, residuals, bar):
    rows, cotangents, product = residuals
    cotangents_bar = (2 * bar[:, :, None, None, None] * product).astype(cotangents.dtype)
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        return None, cotangents_bar

    def of_some(rows, cotangents, bar):
        matrix, pull = jax.vjp(gram_of, rows)
        weighted = bar[:, :, None, None, None] * cotangents
        return pull(jnp.einsum("knbto,knbso->nbts", weighted, cotangents.astype(matrix.dtype)))

    (rows_bar,) = _few_at_a_time(of_some, _matrix_size(cotangents), (rows, cotangents, bar), (0, 1, 1), (0,))
    return rows_bar, cotangents_bar


gram_norms.defvjp(_gram_norms_forward, _gram_norms_backward)


def _matrix_size(cotangents: Float[Array, "K n b T O"]) -> int:
    """The number of entries of one example's Gram matrices."""
    return cotangents.shape[2] * cotangents.shape[3] ** 2


def _few_at_a_time(
    function: Callable[..., tuple[Array, ...]],
    matrix_size: int,
    operands: tuple[Array, ...],
    axes: tuple[int, ...],
    out_axes: tuple[int, ...],
) -> tuple[Array, ...]:
    """`function` of the operands, for so many examples at a time that matrices of this size have `MATRICES` entries.

    Args:
        axes, out_axes: the axis of examples of each operand and of each result.
    """
    n = operands[0].shape[axes[0]]
    count = max(1, min(n, -(-n * matrix_size // MATRICES)))
    if count == 1:
        return function(*operands)
    size = -(-n // count)
    count = -(-n // size)

    def split(operand, axis):
        first = jnp.moveaxis(operand, axis, 0)
        fill = [(0, count * size - n), *[(0, 0)] * (operand.ndim - 1)]
        return jnp.pad(first, fill).reshape(count, size, *first.shape[1:])

    def of_some(*some):
        results = function(*(jnp.moveaxis(part, 0, axis) for part, axis in zip(some, axes, strict=True)))
        return tuple(jnp.moveaxis(part, axis, 0) for part, axis in zip(results, out_axes, strict=True))

    results = map_rows(of_some, tuple(map(split, operands, axes)))
    whole = (part.reshape(count * size, *part.shape[2:])[:n] for part in results)
    return tuple(jnp.moveaxis(part, 0, axis) for part, axis in zip(whole, out_axes, strict=True))
