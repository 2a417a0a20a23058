"""Squared norms of sums of outer products, `|sum_t a_t d_t^T|^2`, in the cheaper of their forms.

The weight gradient of a dense layer or a convolution for one example is `A^T D`, with activations `A [T, C]` and
output cotangents `D [T, O]` at `T` positions. Its squared norm is `|A^T D|^2 = <A A^T, D D^T>`: either the gradient is
formed (`T C O` multiply-adds) or the Gram matrices over positions are (`T^2 (C + O)`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.trees import accumulation_dtype, squared_sum


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


def outer_product_norms(activations: Float[Array, "m T C"], cotangents: Float[Array, "K m T O"]) -> Float[Array, "K m"]:
    """`|sum_t a_t d_t^T|^2` for each of `m` blocks and `K` cotangents."""
    (_, positions, features), (count, *_, outputs) = activations.shape, cotangents.shape
    form = cheapest_form(positions, features, outputs, count).name
    if form == "outer product":
        return squared_sum(activations, 1) * squared_sum(cotangents, 2)
    if form == "gram matrices":
        return quadratic_form(gram(activations), cotangents)
    return squared_sum(outer_products(activations, cotangents), 2)


def outer_products(activations: Float[Array, "m T C"], cotangents: Float[Array, "K m T O"]) -> Float[Array, "K m C O"]:
    """`sum_t a_t d_t^T`, in float32 or wider."""
    dtype = accumulation_dtype(cotangents.dtype)
    return jnp.einsum("mtc,kmto->kmco", activations, cotangents, preferred_element_type=dtype)


@jax.custom_vjp
def gram(activations: Float[Array, "m T C"]) -> Float[Array, "m T T"]:
    """`A A^T`, whose gradient costs one product instead of two."""
    dtype = accumulation_dtype(activations.dtype)
    return jnp.einsum("mtc,msc->mts", activations, activations, preferred_element_type=dtype)


def _gram_backward(activations, bar):
    symmetric = bar + jnp.swapaxes(bar, 1, 2)
    return (jnp.einsum("mts,msc->mtc", symmetric, activations.astype(bar.dtype)).astype(activations.dtype),)


gram.defvjp(lambda activations: (gram(activations), activations), _gram_backward)


@jax.custom_vjp
def quadratic_form(matrix: Float[Array, "m T T"], cotangents: Float[Array, "K m T O"]) -> Float[Array, "K m"]:
    """`<D, P D>` for symmetric `P`; the product `P D` of the value also is half the gradient."""
    return _quadratic_forward(matrix, cotangents)[0]


def _quadratic_forward(matrix, cotangents):
    product = jnp.einsum("mts,kmso->kmto", matrix, cotangents.astype(matrix.dtype))
    return jnp.sum(product * cotangents, axis=(2, 3)), (matrix, cotangents, product)


def _quadratic_backward(residuals, bar):
    matrix, cotangents, product = residuals
    weighted = bar[:, :, None, None] * cotangents
    matrix_bar = jnp.einsum("kmto,kmso->mts", weighted, cotangents.astype(matrix.dtype))
    return matrix_bar, (2 * bar[:, :, None, None] * product).astype(cotangents.dtype)


quadratic_form.defvjp(_quadratic_forward, _quadratic_backward)
