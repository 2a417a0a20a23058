"""Sums over chunks of rows whose gradient, too, stays within one chunk's memory.

Reverse-mode differentiation of a plain loop stores every chunk's intermediates. Here the loop has its own
derivative. Where only a scalar total is used, the gradient is accumulated in the sweep that computes the value, so a
chunked gradient does the work of the unchunked one. Where other results are used too (the outputs in a task loss,
say), or the total is an array, the backward sweep computes each chunk again with all cotangents at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Float

from jacreg_train.jacobian.convolutions import canonicalize_convolutions
from jacreg_train.jacobian.jaxprs import hoist
from jacreg_train.jacobian.trees import (
    PyTree,
    accumulation_dtype,
    num_examples,
    split_floats,
    vary,
    varying_axes,
)

Block = Callable[[PyTree, PyTree, Array], tuple[Array, PyTree]]


def sum_over_chunks(block: Block, shared: PyTree, rows: PyTree, chunk: int | None) -> tuple[Float[Array, ...], PyTree]:
    """Applies `block` to chunks of `rows` and adds up its first result.

    Args:
        block: `block(shared, rows, counted) -> (part, results)`. `counted` is a mask over the rows: padding, where it
            is False, must not enter `part`, a scalar or an array. Every leaf of `results` has the leading axis of
            `rows`, and a row of it depends on the same row of the arguments only.
        shared: what every chunk sees; differentiable.
        rows: pytree with a common leading axis `n`; differentiable.
        chunk: the most rows at a time; None for all at once.

    Returns:
        The sum of the parts, and the results `[n, ...]`.
    """
    n = num_examples(rows)
    if chunk is None or n <= chunk:
        return block(shared, rows, jnp.ones(n, bool))
    count = -(-n // chunk)
    size = -(-n // count)  # chunks of equal size: less padding than full ones and a short last one
    index = jnp.arange(count * size).reshape(count, size)

    def in_chunks(leaf):
        leaf = jnp.asarray(leaf)
        if count * size == n:
            return leaf.reshape(count, size, *leaf.shape[1:])  # no copy
        return leaf[jnp.minimum(index, n - 1)]  # padded by repeating the last row

    chunks = jax.tree.map(in_chunks, rows)
    counted = index < n
    block, closed_over = hoist(block, shared, _first(chunks), counted[0])
    shared_floats, shared_rest, join_shared = split_floats((shared, closed_over))
    row_floats, row_rest, join_rows = split_floats(chunks)
    shared_floats, row_floats = vary((shared_floats, row_floats), varying_axes(shared_floats, row_floats))

    def evaluate(shared_floats, row_floats, shared_rest, row_rest):
        shared, closed_over = join_shared(shared_floats, shared_rest)
        *row_rest, counted = row_rest
        part, results = block(closed_over, shared, join_rows(row_floats, row_rest), counted)
        return vary(part, varying_axes(shared_floats, row_floats)), results

    loop = _differentiable_loop(evaluate)
    total, results = loop(shared_floats, row_floats, shared_rest, [*row_rest, counted])
    return total, jax.tree.map(lambda leaf: leaf.reshape(count * size, *leaf.shape[2:])[:n], results)


def _differentiable_loop(evaluate: Callable[..., tuple[Array, PyTree]]) -> Callable[..., Any]:
    """Loops `evaluate(shared, rows, shared_rest, rows_rest)` over chunks of rows and adds the parts.

    The first two arguments are lists of floating-point arrays, the other two hold the rest.
    """

    def zero_total(shared, rows, shared_rest, rows_rest):
        part, _ = jax.eval_shape(evaluate, shared, _first(rows), shared_rest, _first(rows_rest))
        return vary(jnp.zeros(part.shape, part.dtype), varying_axes(shared, rows))

    @jax.custom_vjp
    def loop(shared, rows, shared_rest, rows_rest):
        def step(total, chunk):
            rows, rows_rest = chunk
            part, results = evaluate(shared, rows, shared_rest, rows_rest)
            return total + part, results

        return _scan(step, zero_total(shared, rows, shared_rest, rows_rest), (rows, rows_rest))

    def forward(*primals):
        wants_rows = any(primal.perturbed for primal in primals[1])
        args = jax.tree.map(lambda primal: primal.value, primals, is_leaf=lambda x: hasattr(x, "perturbed"))
        shared, rows, shared_rest, rows_rest = args
        if zero_total(*args).ndim:  # its gradient has to wait for the cotangent
            return loop(*args), (args, None, None)

        def step(carry, chunk):
            total, gradient = carry
            rows, rows_rest = chunk
            value = lambda shared, rows: evaluate(shared, rows, shared_rest, rows_rest)
            part, pull, results = jax.vjp(value, shared, rows, has_aux=True)
            shared_bar, rows_bar = pull(jnp.ones_like(part))
            return (total + part, _add(gradient, shared_bar)), (results, rows_bar if wants_rows else None)

        start = (zero_total(*args), _accumulators(shared, varying_axes(shared, rows)))
        (total, gradient), (results, rows_gradient) = _scan(step, start, (rows, rows_rest))
        return (total, results), (args, gradient, rows_gradient)

    def backward(residuals, cotangents):
        (shared, rows, shared_rest, rows_rest), gradient, rows_gradient = residuals
        total_bar, results_bar = jax.tree.map(_materialize, cotangents[0], is_leaf=_is_zero), cotangents[1]
        only_total = all(map(_is_zero, jax.tree.leaves(results_bar, is_leaf=_is_zero)))
        if gradient is not None and only_total:
            gradient, rows_gradient = jax.tree.map(lambda leaf: leaf * total_bar, (gradient, rows_gradient))
        else:

            def step(gradient, chunk):
                rows, rows_rest, results_bar = chunk
                value = lambda shared, rows: evaluate(shared, rows, shared_rest, rows_rest)
                _, pull = jax.vjp(value, shared, rows)
                shared_bar, rows_bar = pull((total_bar, results_bar))
                return _add(gradient, shared_bar), rows_bar

            results_bar = jax.tree.map(_materialize, results_bar, is_leaf=_is_zero)
            gradient, rows_gradient = _scan(
                step, _accumulators(shared, varying_axes(shared, rows)), (rows, rows_rest, results_bar)
            )
        if rows_gradient is None:  # nobody differentiates with respect to the rows
            rows_gradient = jax.tree.map(jnp.zeros_like, rows)
        return _cast_like(gradient, shared), _cast_like(rows_gradient, rows), None, None

    loop.defvjp(forward, backward, symbolic_zeros=True)
    return loop


def _scan(step, carry, chunks):
    # XLA brings convolutions into its fast form outside loops only, so the loop's body gets them in that form.
    return lax.scan(canonicalize_convolutions(step), carry, chunks)


def _accumulators(tree: PyTree, axes: frozenset[str]) -> PyTree:
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulation_dtype(leaf.dtype)), tree)
    return vary(zeros, axes)


def _add(tree: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), tree, other)


def _cast_like(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, other: leaf.astype(other.dtype), tree, like)


def _is_zero(bar: Any) -> bool:
    return isinstance(bar, SymbolicZero)


def _materialize(bar: Any) -> Any:
    return vary(jnp.zeros(bar.shape, bar.dtype), bar.aval.manual_axis_type.varying) if _is_zero(bar) else bar


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)
