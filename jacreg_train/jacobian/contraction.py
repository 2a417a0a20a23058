"""`sum_a phi(J[i, k, a]) v[a]` for any elementwise `phi`, without ever holding `J`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.chunking import sum_over_chunks
from jacreg_train.jacobian.coupling import separate_examples
from jacreg_train.jacobian.derivatives import (
    Leaves,
    OfExample,
    basis,
    example_function,
    example_types,
    pullbacks,
    pushforwards,
    vector_leaves,
)
from jacreg_train.jacobian.jaxprs import inline_calls, is_inexact
from jacreg_train.jacobian.options import WRT, check_choice, check_chunks
from jacreg_train.jacobian.structure import REARRANGEMENTS
from jacreg_train.jacobian.trees import ApplyFn, PyTree, accumulation_dtype, num_examples, vary, varying_axes

CHUNK_BYTES = 2**26  # of the values that one chunk makes, where the chunk is left to be chosen

Phi = Callable[[Array], Array]


def contract(
    phi: Phi,
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    vector: PyTree,
    *,
    wrt: str = "inputs",
    chunk: int | None = None,
    example_chunk: int | None = None,
) -> Float[Array, "n K"]:
    """`sum_a phi(J[i, k, a]) v[a]`, exact, for `J[i, k, a] = d f_k(x_i) / d x_i[a]` or `d f_k(x_i) / d theta_a`.

    Goes over chunks of columns `a` by forward mode or of rows `k` by reverse mode, whichever are fewer (columns where
    there are as many). The backward pass goes over the chunks again, so that the memory of the gradient, too, is that
    of one chunk beside the arguments and the result. Differentiable, in reverse mode, in `params`, `inputs`, `vector`
    and what `phi` closes over.

    Args:
        phi: elementwise; it is given arrays of float32, or float64 where the function computes in float64.
        apply_fn, params, inputs: as for an estimator.
        vector: pytree like `inputs` or `params`; each leaf either in one example's shape and shared by all, or with a
            leading axis `n`. What it holds for leaves that are not floating-point is ignored.
        wrt: "inputs" or "params".
        chunk: the most columns or rows at a time. None: as many as make 64 MiB of values, by a count over the
            equations that compute one of them for one example.
        example_chunk: the most examples at a time. None: all, but where `chunk` is None too no more than keep one
            column or row below 64 MiB.

    Returns:
        Shape `[n, K]`, outputs flattened; float32 or wider.

    Raises:
        ValueError: an option is out of its choices, `vector` does not fit, `phi` changes the shape, or the examples of
            `apply_fn` meet.
    """
    check_choice("wrt", wrt, WRT)
    check_chunks(chunk=chunk, example_chunk=example_chunk)
    params, inputs = separate_examples(apply_fn, params, inputs)
    return contract_with_outputs(phi, apply_fn, params, inputs, vector, wrt, chunk, example_chunk)[0]


def contract_with_outputs(
    phi: Phi,
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    vector: PyTree,
    wrt: str,
    chunk: int | None,
    example_chunk: int | None,
) -> tuple[Float[Array, "n K"], Float[Array, "n ..."]]:
    """`contract`, and the outputs `[n, ...]` from the same forward pass."""
    n = num_examples(inputs)
    vector = vary(vector, varying_axes(params, inputs))
    vectors, axes = vector_leaves("vector", vector, params if wrt == "params" else inputs, n, wrt)

    def passes(params, rows):
        inputs, own = rows
        own = iter(own)
        chosen = [v if axis is None else next(own) for v, axis in zip(vectors, axes, strict=True)]
        weights = [v[None] if axis is None else v for v, axis in zip(chosen, axes, strict=True)]
        return _passes(phi, example_function(apply_fn, params, wrt), inputs, weights)

    rows = (inputs, [v for v, axis in zip(vectors, axes, strict=True) if axis == 0])
    if chunk is None:
        at_a_time = max(1, CHUNK_BYTES // _bytes_of_one_pass(passes, params, rows))  # pairs of example and column
        example_chunk = example_chunk or at_a_time
        chunk = max(1, at_a_time // max(1, min(n, example_chunk)))

    def of_examples(params, rows, counted):
        outputs, block, passes_rows, result = passes(params, rows)
        return jnp.zeros(0), (result(*sum_over_chunks(block, (), passes_rows, chunk)), outputs)

    return sum_over_chunks(of_examples, params, rows, example_chunk)[1]


def _passes(phi: Phi, of_example: OfExample, inputs: PyTree, weights: Leaves) -> tuple[Any, Any, Any, Any]:
    """The outputs; the block of some columns or rows, for `sum_over_chunks`; what it goes over; what the sum gives.

    `weights` are the vector's leaves `[n or 1, ...]`.
    """
    leaves, output = jax.eval_shape(lambda x: _leaves_and_output(of_example, x), example_types(inputs))
    dtype = accumulation_dtype(output.dtype)
    weights = [weight.astype(dtype) for weight in weights]
    num_columns, num_rows = sum(math.prod(leaf.shape) for leaf in leaves), math.prod(output.shape)
    n = num_examples(inputs)

    def apply_phi(entries):
        found = jnp.asarray(phi(entries.astype(dtype)))
        if found.shape != entries.shape:
            raise ValueError(f"phi must be elementwise: it made the shape {found.shape} of {entries.shape}")
        return found.astype(dtype)

    if num_columns <= num_rows:
        outputs, push = pushforwards(of_example, inputs)
        width = max((len(weight) for weight in weights), default=1)
        flat = [jnp.broadcast_to(w.reshape(len(w), -1), (width, math.prod(w.shape[1:]))) for w in weights]
        columns = jnp.concatenate([jnp.zeros((width, 0), dtype), *flat], axis=1).T  # [a, n or 1]

        def of_columns(_, rows, counted):
            ids, columns = rows
            entries = apply_phi(push(basis(ids, leaves)).reshape(len(ids), n, num_rows))
            columns = jnp.where(counted[:, None], columns, 0)
            # Products of matrices: XLA on CPU sums over a leading axis a hundred times slower.
            if width == 1:
                return jnp.tensordot(columns[:, 0], entries, 1, precision="highest"), ()
            return jnp.einsum("cn,cnk->nk", columns, entries, precision="highest"), ()

        return outputs, of_columns, (jnp.arange(num_columns), columns), lambda total, _: total

    outputs, pull = pullbacks(of_example, inputs)

    def of_rows(_, ids, counted):
        (vectors,) = basis(ids, [output])
        products = [apply_phi(entries) * weight for entries, weight in zip(pull(vectors), weights, strict=True)]
        return jnp.zeros(0), sum(jnp.sum(product, axis=tuple(range(2, product.ndim))) for product in products)

    return outputs, of_rows, jnp.arange(num_rows), lambda _, results: results.T


def _leaves_and_output(of_example: OfExample, x: PyTree) -> tuple[Leaves, Array]:
    leaves, function = of_example(x)
    return leaves, function(leaves)


def _bytes_of_one_pass(passes: Callable[..., Any], params: PyTree, rows: PyTree) -> int:
    """Bytes of the values that the computation of one column or row of one example makes by arithmetic."""
    jaxprs = []  # filled in while it is traced

    def of_one(params, rows):
        _, block, passes_rows, _ = passes(params, rows)
        first = jax.tree.map(lambda leaf: leaf[:1], passes_rows)
        jaxprs.append(jax.make_jaxpr(block)((), first, jnp.ones(num_examples(first), bool)))

    one = jax.tree.map(lambda leaf: jax.typeof(leaf).update(shape=(1, *leaf.shape[1:])), rows)
    jax.eval_shape(of_one, params, one)
    eqns = [eqn for eqn in inline_calls(jaxprs[0]).jaxpr.eqns if eqn.primitive.name not in REARRANGEMENTS]
    made = [var.aval for eqn in eqns for var in eqn.outvars if is_inexact(var)]
    return max(1, sum(aval.size * aval.dtype.itemsize for aval in made))
