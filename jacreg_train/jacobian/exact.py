"""The dense Jacobian: the oracle, and in chunks the estimator for any function at all."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.estimate import Estimator, JacobianEstimate
from jacreg_train.jacobian.jaxprs import depends_on_arguments
from jacreg_train.jacobian.layerwise import inputs_pullback
from jacreg_train.jacobian.options import WRT, check_choice, check_positive
from jacreg_train.jacobian.rows import SquaredNorms, row_estimator
from jacreg_train.jacobian.trees import (
    ApplyFn,
    PyTree,
    accumulation_dtype,
    one_example,
    split_floats,
    squared_sum,
)


def exact(*, wrt: str = "params") -> Estimator:
    """All of `J [n, K, p]` at once, squared and summed: for tests and tiny problems.

    Raises:
        ValueError: `wrt` is not known.
    """
    check_choice("wrt", wrt, WRT)

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        apply_one = one_example(apply_fn)
        if wrt == "params":
            leaves, rest, join = split_floats(params, "params")
            of_one = lambda leaves, x: apply_one(join(leaves, rest), x)
            jacobian = jax.vmap(jax.jacrev(of_one), (None, 0))(leaves, inputs)
        else:
            leaves, rest, join = split_floats(inputs, "inputs")
            of_one = lambda leaves, rest: apply_one(params, join(leaves, rest))
            jacobian = jax.vmap(jax.jacrev(of_one))(leaves, rest)
        outputs = jax.vmap(apply_one, (None, 0))(params, inputs)
        zero = jnp.zeros(outputs.shape, accumulation_dtype(outputs.dtype))
        per_output = sum((squared_sum(leaf, outputs.ndim) for leaf in jacobian), start=zero)
        per_output = per_output.reshape(len(outputs), zero[:1].size)
        per_example = jnp.sum(per_output, axis=1)
        total = jnp.sum(per_example)
        return JacobianEstimate(total, per_example, per_output, outputs, jnp.zeros((), total.dtype))

    return estimate


def chunked(*, wrt: str = "params", example_chunk: int | None = None, output_chunk: int | None = None) -> Estimator:
    """The dense Jacobian in chunks: `output_chunk` rows of `example_chunk` examples at a time.

    The gradient stays within the chunk's memory as well. Any function will do.

    Raises:
        ValueError: an option is out of its choices.
    """
    check_choice("wrt", wrt, WRT)
    check_positive(example_chunk=example_chunk, output_chunk=output_chunk)
    pullback = dense_params_pullback if wrt == "params" else inputs_pullback
    return row_estimator(pullback, example_chunk, output_chunk)


def dense_params_pullback(
    apply_fn: ApplyFn, params: PyTree, inputs: PyTree
) -> tuple[Float[Array, "n ..."], SquaredNorms]:
    """Each example's parameter gradients, formed and squared."""
    leaves, rest, join = split_floats(params, "params")
    apply_one = one_example(apply_fn)

    structure = []  # of the pullback, filled in while it is traced

    def pull_one(x):
        output, pull = jax.vjp(lambda leaves: apply_one(join(leaves, rest), x), leaves)
        residuals, structure[:] = _leaves_and_structure(pull)
        return output, residuals

    # The residuals hold the weights too; only what depends on the example gets an example axis.
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), inputs)
    depends = depends_on_arguments(pull_one, example)
    axes = jax.tree.map(lambda depends: 0 if depends else None, depends)
    outputs, residuals = jax.vmap(pull_one, out_axes=(0, axes[1]))(inputs)

    def squared_norms(cotangents):
        pull = lambda residuals, cotangents: jax.vmap(structure[0].unflatten(residuals))(cotangents)[0]
        bars = jax.vmap(pull, (axes[1], 1), 1)(residuals, cotangents)
        zero = jnp.zeros(cotangents.shape[:2], accumulation_dtype(cotangents.dtype))
        return sum((squared_sum(bar, 2) for bar in bars), start=zero)

    return outputs, squared_norms


def _leaves_and_structure(tree: PyTree) -> tuple[list[Array], list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, [structure]
