"""Losses on the rows of the Jacobian, and one number per example from two vectors.

`J[i, k, a]` is `d f_k(x_i) / d x_i[a]` or, with `wrt="params"`, `d f_k(x_i) / d theta_a`. Nothing is divided by `n` or
`K`. All are pure, traceable, and differentiable in reverse mode in `params` and `inputs`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.chunking import sum_over_chunks
from jacreg_train.jacobian.contraction import contract_with_outputs
from jacreg_train.jacobian.coupling import separate_examples
from jacreg_train.jacobian.derivatives import example_axis, example_function, vector_leaves
from jacreg_train.jacobian.estimate import standard_error_of_mean
from jacreg_train.jacobian.layerwise import PULLBACKS
from jacreg_train.jacobian.options import WRT, check_choice, check_chunks
from jacreg_train.jacobian.probes import DISTRIBUTIONS, example_keys
from jacreg_train.jacobian.rows import sum_over_rows
from jacreg_train.jacobian.stochastic import random_pushforward
from jacreg_train.jacobian.trees import ApplyFn, PyTree, accumulation_dtype, num_examples, split_floats


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FunctionalEstimate:
    """A functional of the Jacobian on a batch of `n` examples, and what came with it.

    Attributes:
        value: summed over examples and outputs, or its unbiased estimate; float32 or wider.
        per_example: the terms of `value`, shape `[n]`.
        outputs: `f`'s outputs, shape `[n, ...]`, from the same forward pass.
        standard_error: of `value`, a scalar: 0 where it is exact, nan where the probes give none.
        shared_draws: as in `JacobianEstimate`: here the jackknife's pseudo-values.
    """

    value: Float[Array, ""]
    per_example: Float[Array, " n"]
    outputs: Float[Array, "n ..."]
    standard_error: Float[Array, ""]
    shared_draws: Float[Array, " m"] | None = None


def row_norm(
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    *,
    wrt: str = "inputs",
    target: float = 1.0,
    num_probes: int | None = None,
    key: Any = None,
    distribution: str | None = None,
    chunk: int | None = None,
    example_chunk: int | None = None,
    first_example: Any = 0,
) -> FunctionalEstimate:
    """`sum_i sum_k (sum_a J[i, k, a]^2 - target)^2`.

    Exact by rows, layerwise for parameters; for inputs with fewer entries than outputs, by columns. With `num_probes`
    from tangent probes `u`: `(J_k u)^2` has the mean `r = sum_a J[k, a]^2`, so for independent `u`, `w` the product
    `((J_k u)^2 - target) ((J_k w)^2 - target)` has the mean `(r - target)^2`. The value is the mean of these products
    over all pairs of two independent sets' `2 num_probes` probes, so it and its gradient are unbiased.

    Args:
        apply_fn, params, inputs: as for an estimator.
        wrt: "inputs" or "params".
        target: what each row's squared norm should be.
        num_probes: probes in each of the two sets, one forward-mode pass each; None for the exact value. Probes of
            parameters are shared by all examples, those of inputs are each example's own.
        key: a JAX random key, needed with `num_probes` only.
        distribution: of the probes: "rademacher" (the default), "gaussian" or "sphere".
        chunk: the most rows, columns or probes at a time. None: all rows or probes, and columns as `contract` chooses.
        example_chunk: the most examples at a time. None: all; by columns as `contract` chooses.
        first_example: index of the first example in the whole batch, as for an estimator.

    Returns:
        The estimate. From probes, `standard_error` is by the jackknife, nan for `num_probes=1`.

    Raises:
        ValueError: an option is out of its choices or has no meaning with the others, `key` is missing, or the
            examples of `apply_fn` meet.
    """
    check_choice("wrt", wrt, WRT)
    check_chunks(num_probes=num_probes, chunk=chunk, example_chunk=example_chunk)
    if num_probes is None and distribution is not None:
        raise ValueError(f"distribution={distribution!r} has no meaning with num_probes=None; choices: None")
    distribution = distribution or "rademacher"
    check_choice("distribution", distribution, tuple(DISTRIBUTIONS))
    params, inputs, key = separate_examples(apply_fn, params, inputs, key)
    gap = lambda squares: jnp.square(squares - target)
    if num_probes is not None:
        arguments = (wrt, target, 2 * num_probes, key, distribution, chunk, example_chunk, first_example)
        return _row_norm_from_probes(apply_fn, params, inputs, *arguments)
    num_columns, num_rows = _shape_of_jacobian(apply_fn, params, inputs, wrt)
    if wrt == "inputs" and num_columns < num_rows:
        ones = jax.tree.map(lambda leaf: jnp.ones(jnp.shape(leaf)[1:]), inputs)
        norms, outputs = contract_with_outputs(jnp.square, apply_fn, params, inputs, ones, wrt, chunk, example_chunk)
        terms = gap(norms)
        total = jnp.sum(terms)
    else:
        total, terms, outputs = sum_over_rows(gap, PULLBACKS[wrt], apply_fn, params, inputs, example_chunk, chunk)
    return _exact(total, jnp.sum(terms, axis=1), outputs)


def _row_norm_from_probes(
    apply_fn, params, inputs, wrt, target, count, key, distribution, chunk, example_chunk, first_example
) -> FunctionalEstimate:
    keys = example_keys(key, num_examples(inputs), first_example)

    def of_examples(params, rows, counted):
        outputs, push = random_pushforward(wrt, distribution, key, apply_fn, params, *rows)
        squares = lambda _, indices, counted: (jnp.zeros(0), jnp.square(push(indices)))
        gaps = sum_over_chunks(squares, (), jnp.arange(count), chunk)[1] - target  # [count, n, K]
        total, own = jnp.sum(gaps, axis=0), jnp.sum(jnp.square(gaps), axis=0)
        pairs = jnp.square(total) - own  # twice the sum over pairs of different probes
        per_example = jnp.sum(pairs, axis=1) / (count * (count - 1))
        without = pairs - 2 * gaps * (total - gaps)  # the same without one of the probes
        one_left_out = jnp.sum(without, axis=2).T / max((count - 1) * (count - 2), 1)
        value = jnp.sum(jnp.where(counted, per_example, 0))
        return value, (per_example, jax.lax.stop_gradient(one_left_out), outputs)

    value, (per_example, one_left_out, outputs) = sum_over_chunks(of_examples, params, (inputs, keys), example_chunk)
    if count == 2:
        one_left_out = jnp.full_like(one_left_out, jnp.nan)
    if wrt == "inputs":
        error = jnp.sqrt((count - 1) * jnp.sum(jnp.var(one_left_out, axis=1)))
        return FunctionalEstimate(value, per_example, outputs, error)
    # One probe of the parameters serves all examples: only the totals are independent.
    draws = count * jax.lax.stop_gradient(value) - (count - 1) * jnp.sum(one_left_out, axis=0)
    return FunctionalEstimate(value, per_example, outputs, standard_error_of_mean(draws), draws)


def row_sum(
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    *,
    wrt: str = "inputs",
    target: float = 1.0,
    example_chunk: int | None = None,
) -> FunctionalEstimate:
    """`sum_i sum_k (sum_a J[i, k, a] - target)^2`, exact, from one forward-mode pass along the vector of ones.

    Args:
        apply_fn, params, inputs: as for an estimator.
        wrt: "inputs" or "params".
        target: what each row's sum should be.
        example_chunk: the most examples at a time; None for all.

    Raises:
        ValueError: an option is out of its choices, or the examples of `apply_fn` meet.
    """
    check_choice("wrt", wrt, WRT)
    check_chunks(example_chunk=example_chunk)
    params, inputs = separate_examples(apply_fn, params, inputs)
    num_columns, _ = _shape_of_jacobian(apply_fn, params, inputs, wrt)
    scale = 2.0 ** -(num_columns.bit_length() // 2)  # keeps sums of many entries inside float16; exact elsewhere

    def of_examples(params, inputs, counted):
        of_example = example_function(apply_fn, params, wrt)

        def of_one(x):
            leaves, function = of_example(x)
            output, moved = jax.jvp(function, (leaves,), ([jnp.full_like(leaf, scale) for leaf in leaves],))
            sums = moved.astype(accumulation_dtype(moved.dtype)) / scale
            return output, jnp.sum(jnp.square(sums - target))

        outputs, per_example = jax.vmap(of_one)(inputs)
        return jnp.sum(jnp.where(counted, per_example, 0)), (per_example, outputs)

    total, (per_example, outputs) = sum_over_chunks(of_examples, params, inputs, example_chunk)
    return _exact(total, per_example, outputs)


def bilinear(
    apply_fn: ApplyFn,
    params: PyTree,
    inputs: PyTree,
    left: Any,
    right: PyTree,
    *,
    wrt: str = "inputs",
    example_chunk: int | None = None,
) -> Float[Array, " n"]:
    """`sum_ka u[k] J[i, k, a] v[a]`, exact, at the cost of one forward-mode pass.

    Args:
        apply_fn, params, inputs: as for an estimator.
        left: `u`, in the shape of one example's output and shared by all, or with a leading axis `n`.
        right: `v`, a pytree like `inputs` or `params`; each leaf in one example's shape and shared by all, or with a
            leading axis `n`. What it holds for leaves that are not floating-point is ignored.
        wrt: "inputs" or "params".
        example_chunk: the most examples at a time; None for all.

    Returns:
        Shape `[n]`, float32 or wider; differentiable in `left` and `right` too.

    Raises:
        ValueError: an option is out of its choices, `left` or `right` does not fit, or the examples of `apply_fn` meet.
    """
    check_choice("wrt", wrt, WRT)
    check_chunks(example_chunk=example_chunk)
    params, inputs, left, right = separate_examples(apply_fn, params, inputs, left, right)
    n = num_examples(inputs)
    rights, right_axes = vector_leaves("right", right, params if wrt == "params" else inputs, n, wrt)
    left, shape = jnp.asarray(left), jax.eval_shape(apply_fn, params, inputs).shape[1:]
    vectors, axes = [left, *rights], [example_axis("left", left, shape, n), *right_axes]

    def of_examples(params, rows, counted):
        inputs, own = rows
        own = iter(own)
        chosen = [v if axis is None else next(own) for v, axis in zip(vectors, axes, strict=True)]
        of_example = example_function(apply_fn, params, wrt)

        def of_one(x, vectors):
            leaves, function = of_example(x)
            tangents = [v.astype(leaf.dtype) for v, leaf in zip(vectors[1:], leaves, strict=True)]
            output, moved = jax.jvp(function, (leaves,), (tangents,))
            dtype = accumulation_dtype(output.dtype)
            return jnp.sum(vectors[0].astype(dtype) * moved.astype(dtype))

        return jnp.zeros(0), jax.vmap(of_one, (0, axes))(inputs, chosen)

    rows = (inputs, [v for v, axis in zip(vectors, axes, strict=True) if axis == 0])
    return sum_over_chunks(of_examples, params, rows, example_chunk)[1]


def _shape_of_jacobian(apply_fn: ApplyFn, params: PyTree, inputs: PyTree, wrt: str) -> tuple[int, int]:
    """One example's number of columns and rows."""
    floats, _, _ = split_floats(params if wrt == "params" else inputs)
    columns = sum(math.prod(leaf.shape[wrt == "inputs" :]) for leaf in floats)
    return columns, math.prod(jax.eval_shape(apply_fn, params, inputs).shape[1:])


def _exact(
    value: Float[Array, ""], per_example: Float[Array, " n"], outputs: Float[Array, "n ..."]
) -> FunctionalEstimate:
    return FunctionalEstimate(value, per_example, outputs, jnp.zeros((), value.dtype))
