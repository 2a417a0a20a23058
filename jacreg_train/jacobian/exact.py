"""The dense Jacobian: the oracle, and in chunks the estimator for any function at all."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.chunking import sum_over_chunks
from jacreg_train.jacobian.estimate import Estimator, JacobianEstimate
from jacreg_train.jacobian.jaxprs import depends_on_arguments
from jacreg_train.jacobian.layerwise import inputs_pullback
from jacreg_train.jacobian.options import WRT, check_choice, check_chunks
from jacreg_train.jacobian.rows import SquaredNorms, one_hot_cotangents, row_estimator
from jacreg_train.jacobian.trees import (
    ApplyFn,
    PyTree,
    accumulation_dtype,
    differentiated_leaves,
    one_example,
    squared_sum,
)


def exact(*, wrt: str = "params", joint: bool = False) -> Estimator:
    """All of `J [n, K, p]` at once, squared and summed: for tests and tiny problems.

    Args:
        wrt: "params" or "inputs".
        joint: the examples of a batch meet, in batch statistics say, and every output is differentiated with respect
            to the parameters, or the inputs of all examples, of the whole batch.

    Raises:
        ValueError: an option is out of its choices.
    """
    check_choice("wrt", wrt, WRT)
    check_choice("joint", joint, (True, False))

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        leaves, rest, join = differentiated_leaves(params if wrt == "params" else inputs, wrt)
        of_params = lambda apply: lambda leaves, rest, x: apply(join(leaves, rest), x)
        of_inputs = lambda apply: lambda leaves, rest, x: apply(params, join(leaves, rest))
        function = (of_params if wrt == "params" else of_inputs)(apply_fn if joint else one_example(apply_fn))
        axes = (None, None, 0) if wrt == "params" else (0, 0, 0)
        each = (lambda fun: fun) if joint else (lambda fun: jax.vmap(fun, axes))
        outputs = each(function)(leaves, rest, inputs)
        jacobian = each(jax.jacrev(function))(leaves, rest, inputs) if leaves and outputs.size else []
        zero = jnp.zeros(outputs.shape, accumulation_dtype(outputs.dtype))
        per_output = sum((squared_sum(leaf, outputs.ndim) for leaf in jacobian), start=zero)
        per_output = per_output.reshape(len(outputs), math.prod(outputs.shape[1:]))
        per_example = jnp.sum(per_output, axis=1)
        total = jnp.sum(per_example)
        return JacobianEstimate(total, per_example, per_output, outputs, jnp.zeros((), total.dtype))

    return estimate


def chunked(
    *,
    wrt: str = "params",
    example_chunk: int | None = None,
    output_chunk: int | None = None,
    joint: bool = False,
) -> Estimator:
    """The dense Jacobian in chunks: `output_chunk` rows of `example_chunk` examples at a time.

    The gradient stays within the chunk's memory as well. Any function will do.

    Args:
        wrt: "params" or "inputs".
        example_chunk: the most examples at a time; None for all.
        output_chunk: the most outputs at a time; None for all.
        joint: as for `exact`. Then rows of all examples count as outputs, and `example_chunk` has no meaning.

    Raises:
        ValueError: an option is out of its choices.
    """
    check_choice("wrt", wrt, WRT)
    check_choice("joint", joint, (True, False))
    check_chunks(example_chunk=example_chunk, output_chunk=output_chunk)
    if joint:
        if example_chunk is not None:
            raise ValueError(f"example_chunk={example_chunk} has no meaning with joint=True; choices: None")
        return _joint_estimator(wrt, output_chunk)
    pullback = dense_params_pullback if wrt == "params" else inputs_pullback
    return row_estimator(pullback, example_chunk, output_chunk)


def _joint_estimator(wrt: str, output_chunk: int | None) -> Estimator:
    """The batch as one function of `n K` outputs."""

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        leaves, rest, join = differentiated_leaves(params if wrt == "params" else inputs, wrt)
        joined = lambda leaves: (join(leaves, rest), inputs) if wrt == "params" else (params, join(leaves, rest))
        outputs, pull = jax.vjp(lambda leaves: apply_fn(*joined(leaves)), leaves)

        def of_outputs(_, ids, counted):
            cotangents = one_hot_cotangents(ids, outputs[None])[:, 0]
            (bars,) = jax.vmap(pull)(cotangents)
            zero = jnp.zeros(len(ids), accumulation_dtype(outputs.dtype))
            squares = sum((squared_sum(bar, 1) for bar in bars), start=zero)
            return jnp.sum(jnp.where(counted, squares, 0)), squares

        total, squares = sum_over_chunks(of_outputs, (), jnp.arange(outputs.size), output_chunk)
        per_output = squares.reshape(len(outputs), math.prod(outputs.shape[1:]))
        per_example = jnp.sum(per_output, axis=1)
        return JacobianEstimate(total, per_example, per_output, outputs, jnp.zeros((), total.dtype))

    return estimate


def dense_params_pullback(
    apply_fn: ApplyFn, params: PyTree, inputs: PyTree
) -> tuple[Float[Array, "n ..."], SquaredNorms]:
    """Each example's parameter gradients, formed and squared."""
    leaves, rest, join = differentiated_leaves(params, "params")
    apply_one = one_example(apply_fn)

    structure: list[Any] = []  # of the pullback, filled in while it is traced

    def pull_one(x):
        output, pull = jax.vjp(lambda leaves: apply_one(join(leaves, rest), x), leaves)
        residuals, structure[:] = _leaves_and_structure(pull)
        return output, residuals

    # The residuals hold the weights too; only what depends on the example gets an example axis.
    example = jax.tree.map(lambda leaf: jax.typeof(leaf).update(shape=leaf.shape[1:]), inputs)
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
