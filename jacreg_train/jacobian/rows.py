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
from jacreg_train.jacobian.trees import ApplyFn, PyTree, vary, varying_axes

SquaredNorms = Callable[[Float[Array, "k n ..."]], Float[Array, "k n"]]
Pullback = Callable[[ApplyFn, PyTree, PyTree], tuple[Float[Array, "n ..."], SquaredNorms]]
SplitPullback = Callable[[ApplyFn, PyTree, PyTree], tuple[Float[Array, "n ..."], Float[Array, " n"], SquaredNorms]]


def row_estimator(pullback: Pullback, example_chunk: int | None, output_chunk: int | None) -> Estimator:
    """The exact estimator that pulls back `output_chunk` outputs of `example_chunk` examples at a time."""

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        of_rows = lambda squares: squares
        total, rows, outputs = sum_over_rows(of_rows, pullback, apply_fn, params, inputs, example_chunk, output_chunk)
        return JacobianEstimate(total, jnp.sum(rows, axis=1), rows, outputs, jnp.zeros((), total.dtype))

    return estimate


def sum_over_rows(
    term: Callable[[Array], Array],
    pullback: Pullback,
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    example_chunk: int | None,
    output_chunk: int | None,
) -> tuple[Float[Array, ""], Float[Array, "n K"], Float[Array, "n ..."]]:
    """The sum of `term(|J_ik|^2)`, elementwise, over examples and outputs; the terms; the outputs."""

    def of_examples(params, inputs, counted):
        outputs, squared_norms = pullback(apply_fn, params, inputs)

        def of_outputs(_, ids, counted_outputs):
            terms = term(squared_norms(one_hot_cotangents(ids, outputs)))
            return jnp.sum(jnp.where(counted_outputs[:, None] & counted, terms, 0)), terms

        ids = jnp.arange(math.prod(outputs.shape[1:]))
        total, terms = sum_over_chunks(of_outputs, (), ids, output_chunk)
        return total, (terms.T, outputs)

    total, (terms, outputs) = sum_over_chunks(of_examples, params, inputs, example_chunk)
    return total, terms, outputs


def one_hot_cotangents(ids: Array, outputs: Float[Array, "n ..."]) -> Float[Array, "k n ..."]:
    """For each output index in `ids` the cotangent that picks it, for every example."""
    size = math.prod(outputs.shape[1:])
    rows = (ids[:, None] == jnp.arange(size)).astype(outputs.dtype)
    rows = jnp.broadcast_to(rows.reshape(len(ids), 1, *outputs.shape[1:]), (len(ids), *outputs.shape))
    return vary(rows, varying_axes(outputs))
