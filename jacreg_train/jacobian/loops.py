"""A loop over rows that holds no memory before it starts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from jacreg_train.jacobian.trees import PyTree


def map_rows(function: Callable[..., PyTree], operands: Sequence[Array]) -> PyTree:
    """`function(*rows)` for the rows of the operands, one after the other, stacked.

    `lax.map` gathers its results in zeros. They depend on nothing, so XLA may make them first of all and hold them
    beside all activations until the loop comes. Here what first fills the buffers depends on all operands.
    """
    entry = lambda operand: jnp.sum(jnp.ravel(operand[:1])[:1].astype(jnp.float32))
    fill = functools.reduce(jnp.add, map(entry, operands))
    rows = [jax.typeof(operand).update(shape=operand.shape[1:]) for operand in operands]
    buffers = jax.tree.map(
        lambda row: jnp.full((len(operands[0]), *row.shape), lax.stop_gradient(fill).astype(row.dtype)),
        jax.eval_shape(function, *rows),
    )
    if not len(operands[0]):
        return buffers

    def step(buffers, turn):
        index, rows = turn
        put = lambda buffer, row: lax.dynamic_update_index_in_dim(buffer, row, index, 0)
        return jax.tree.map(put, buffers, function(*rows)), None

    return lax.scan(step, buffers, (jnp.arange(len(operands[0])), tuple(operands)))[0]
