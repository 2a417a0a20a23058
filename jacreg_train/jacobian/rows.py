"""Exact estimators from a pullback: every output's row of the Jacobian, in chunks of examples and outputs.

A *pullback* takes `(apply_fn, params, inputs)` and returns the outputs `[n, ...]` and a function from output cotangents
`v [k, n, ...]` to the squared norms `|J_i^T v_ki|^2`, `[k, n]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.chunking import sum_over_chunks
from jacreg_train.jacobian.estimate import Estimator, JacobianEstimate
from jacreg_train.jacobian.trees import ApplyFn, PyTree

SquaredNorms = Callable[[Float[Array, "k n ..."]], Float[Array, "k n"]]
Pullback = Callable[[ApplyFn, PyTree, PyTree], tuple[Float[Array, "n ..."], SquaredNorms]]


def row_estimator(pullback: Pullback, example_chunk: int | None, output_chunk: int | None) -> Estimator:
    """The exact estimator that pulls back every output, `output_chunk` of them for `example_chunk` examples at a time."""

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        def of_examples(params, inputs, counted):
            outputs, squared_norms = pullback(apply_fn, params, inputs)
            basis = lambda ids: one_hot_cotangents(ids, outputs)

            def of_outputs(_, ids, counted_outputs):
                squares = squared_norms(basis(ids))
                return jnp.sum(jnp.where(counted_outputs[:, None] & counted, squares, 0)), squares

            ids = jnp.arange(math.prod(outputs.shape[1:]))
            total, squares = sum_over_chunks(of_outputs, (), ids, output_chunk)
            return total, (squares.T, outputs)

        total, (per_output, outputs) = sum_over_chunks(of_examples, params, inputs, example_chunk)
        per_example = jnp.sum(per_output, axis=1)
        return JacobianEstimate(total, per_example, per_output, outputs, jnp.zeros((), total.dtype))

    return estimate


def one_hot_cotangents(ids: Array, outputs: Float[Array, "n ..."]) -> Float[Array, "k n ..."]:
    """For each output index in `ids` the cotangent that picks it, for every example."""
    size = math.prod(outputs.shape[1:])
    rows = (ids[:, None] == jnp.arange(size)).astype(outputs.dtype)
    return jnp.broadcast_to(rows.reshape(len(ids), 1, *outputs.shape[1:]), (len(ids), *outputs.shape))
