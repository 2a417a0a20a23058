"""Per-layer closed forms: the squared norm, per example, of the cotangent of one equation's weight.

Every rule takes the equation, the position of the weight among its operands, the operands (those that depend on the
example with a leading axis `n`, the others without), and the cotangents of the equation's output `[K, n, ...]`. A rule
that does not cover the case returns None, and the equation's own derivative serves it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core
from jaxtyping import Float

from jacreg_train.jacobian import norms
from jacreg_train.jacobian.convolution_rule import (
    convolution_cotangent,
    convolution_form,
    convolution_squared_norm,
)
from jacreg_train.jacobian.jaxprs import evaluate_equation, is_inexact
from jacreg_train.jacobian.trees import accumulation_dtype, squared_sum


@dataclasses.dataclass(frozen=True)
class Operand:
    """A value an equation takes; `per_example` says whether it has the leading axis `n`."""

    value: Any
    per_example: bool


def weight_cotangent(
    eqn: core.JaxprEqn,
    position: int,
    operands: Sequence[Operand],
    cotangents: Sequence[Float[Array, "K n ..."]],
) -> Float[Array, "K n ..."]:
    """The cotangent of the weight at `position`, for every output cotangent and example."""
    if eqn.primitive.name in COTANGENTS:
        found = COTANGENTS[eqn.primitive.name](eqn, position, operands, cotangents[0])
        if found is not None:
            return found

    def of_one(values, cotangents):
        def outputs_of(weight):
            outputs = evaluate_equation(eqn, [*values[:position], weight, *values[position + 1 :]])
            return [y for y, var in zip(outputs, eqn.outvars, strict=True) if is_inexact(var)]

        return jax.vjp(outputs_of, values[position])[1](cotangents)[0]

    values = [operand.value for operand in operands]
    of_examples = jax.vmap(of_one, ([0 if operand.per_example else None for operand in operands], 0))
    return jax.vmap(of_examples, (None, 0))(values, list(cotangents))


def weight_squared_norm(
    eqn: core.JaxprEqn,
    position: int,
    operands: Sequence[Operand],
    cotangents: Sequence[Float[Array, "K n ..."]],
) -> Float[Array, "K n"]:
    """The squared norm of `weight_cotangent`, by a closed form where there is one."""
    if eqn.primitive.name in SQUARED_NORMS:
        found = SQUARED_NORMS[eqn.primitive.name](eqn, position, operands, cotangents[0])
        if found is not None:
            return found
    return squared_sum(weight_cotangent(eqn, position, operands, cotangents), 2)


def _dense(eqn, position, operands, cotangents):
    (contracted, batched) = eqn.params["dimension_numbers"]
    other = operands[1 - position]
    contract, batch = contracted[1 - position], batched[1 - position]
    if not other.per_example:
        return None
    shape = other.value.shape[1:]
    free = [axis for axis in range(len(shape)) if axis not in (*contract, *batch)]
    size = lambda axes: math.prod(shape[axis] for axis in axes)
    activations = jnp.transpose(other.value, [0, *(1 + axis for axis in (*batch, *free, *contract))])
    blocks, (count, n) = size(batch), cotangents.shape[:2]
    outputs = math.prod(cotangents.shape[2:]) // max(blocks * size(free), 1)
    activations = activations.reshape(n, blocks, size(free), size(contract))
    if position == 0:  # the output has the weight's free axes before the activations'
        cotangents = cotangents.reshape(count, n, blocks, outputs, size(free)).swapaxes(3, 4)
    else:
        cotangents = cotangents.reshape(count, n, blocks, size(free), outputs)
    return norms.outer_product_norms(activations, cotangents)


def _dense_form(eqn, position, cotangents):
    contracted, batched = eqn.params["dimension_numbers"]
    shape = eqn.invars[1 - position].aval.shape
    size = lambda axes: math.prod(shape[axis] for axis in axes)
    blocks, features = size(batched[1 - position]), size(contracted[1 - position])
    positions = math.prod(shape) // max(blocks * features, 1)
    outputs = math.prod(eqn.outvars[0].aval.shape) // max(blocks * positions, 1)
    form = norms.cheapest_form(positions, features, outputs, cotangents)
    return form._replace(cost=blocks * form.cost)


def _embedding_form(eqn, position, cotangents):
    rows = math.prod(eqn.invars[1].aval.shape[:-1])
    return (
        norms.Form("equal rows", 2 * rows * cotangents * math.prod(eqn.outvars[0].aval.shape)) if not position else None
    )


def _embedding(eqn, position, operands, cotangents):
    """Rows taken from a table: cotangents of equal rows add up before squaring."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    table, indices = eqn.invars[0].aval, operands[1]
    whole_rows = (
        position == 0
        and indices.per_example
        and numbers.start_index_map == (0,)
        and numbers.collapsed_slice_dims == (0,)
        and not numbers.operand_batching_dims
        and tuple(sizes) == (1, *table.shape[1:])
        and eqn.params["mode"]
        in (
            lax.GatherScatterMode.PROMISE_IN_BOUNDS,
            lax.GatherScatterMode.CLIP,
            lax.GatherScatterMode.FILL_OR_DROP,
        )
    )
    if not whole_rows:
        return None
    count, n = cotangents.shape[:2]
    rows = indices.value.reshape(n, math.prod(indices.value.shape[1:]))
    if rows.shape[1] ** 2 > table.size:  # the table's gradient is smaller than the positions' Gram matrix
        return None
    out = range(len(eqn.outvars[0].aval.shape))
    positions = [axis for axis in out if axis not in numbers.offset_dims]
    order = [0, 1, *(2 + axis for axis in (*positions, *numbers.offset_dims))]
    cotangents = jnp.transpose(cotangents, order).reshape(count, n, 1, rows.shape[1], math.prod(table.shape[1:]))
    if eqn.params["mode"] == lax.GatherScatterMode.CLIP:
        rows = jnp.clip(rows, 0, table.shape[0] - 1)

    def equal(rows):
        inside = (rows >= 0) & (rows < table.shape[0])
        same = (rows[:, :, None] == rows[:, None, :]) & inside[:, :, None]
        return same[:, None].astype(accumulation_dtype(cotangents.dtype))

    return norms.gram_norms(equal, rows, cotangents)


Rule = Callable[[core.JaxprEqn, int, Sequence[Operand], Array], Array | None]
SQUARED_NORMS: dict[str, Rule] = {
    "dot_general": _dense,
    "conv_general_dilated": convolution_squared_norm,
    "gather": _embedding,
}
COTANGENTS: dict[str, Rule] = {"conv_general_dilated": convolution_cotangent}
FORMS: dict[str, Callable[[core.JaxprEqn, int, int], norms.Form | None]] = {
    "dot_general": _dense_form,
    "conv_general_dilated": lambda eqn, position, cotangents: convolution_form(eqn, cotangents) if position else None,
    "gather": _embedding_form,
}
