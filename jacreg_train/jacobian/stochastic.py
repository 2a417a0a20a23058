"""Unbiased estimates from random probes: `E[|J^T v|^2] = E[|J u|^2] = |J|^2` for probes with identity covariance.

Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990. Cotangent probes live in output space,
one set per example, and go through the layerwise machinery; what is known without them, the last layer's part mostly,
is added exactly. Tangent probes live where the derivative is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jacreg_train.jacobian.chunking import sum_over_chunks
from jacreg_train.jacobian.convolutions import close_convolutions
from jacreg_train.jacobian.estimate import Estimator, JacobianEstimate, standard_error_of_mean
from jacreg_train.jacobian.layerwise import SPLIT_PULLBACKS
from jacreg_train.jacobian.options import WRT, check_choice, check_chunks, check_positive
from jacreg_train.jacobian.probes import DISTRIBUTIONS, draw_like, draw_orthogonal_probes, draw_probes, example_keys
from jacreg_train.jacobian.trees import (
    ApplyFn,
    PyTree,
    accumulation_dtype,
    differentiated_leaves,
    num_examples,
    outputs_by_example,
)

PROBES = ("cotangent", "tangent")


def stochastic(
    *,
    wrt: str = "params",
    num_probes: int = 1,
    probe: str = "cotangent",
    distribution: str | None = None,
    orthogonal: bool = False,
    example_chunk: int | None = None,
    output_chunk: int | None = None,
) -> Estimator:
    """Random probes, `num_probes` of them per example.

    Args:
        wrt: "params" or "inputs".
        num_probes: the standard error falls with its square root.
        probe: "cotangent" (`J^T v`, one reverse pass each) or "tangent" (`J u`, one forward pass each; for parameters
            all examples share `u`, and its variance is far higher).
        distribution: "rademacher" (the default), "gaussian", or "sphere" (the default of orthogonal probes).
        orthogonal: cotangent probes orthogonal within each example, on the sphere: `num_probes = K` is exact.
        example_chunk: the most examples at a time.
        output_chunk: the most probes at a time.

    Raises:
        ValueError: an option is out of its choices or has no meaning with the others; when called, `key` is None or
            there are more orthogonal probes than outputs.
    """
    check_choice("wrt", wrt, WRT)
    check_choice("probe", probe, PROBES)
    check_choice("orthogonal", orthogonal, (True, False))
    check_positive(num_probes=num_probes)
    check_chunks(example_chunk=example_chunk, output_chunk=output_chunk)
    if distribution is None:
        distribution = "sphere" if orthogonal else "rademacher"
    check_choice("distribution", distribution, tuple(DISTRIBUTIONS))
    if orthogonal and (probe != "cotangent" or distribution != "sphere"):
        raise ValueError(
            f"orthogonal=True has no meaning for probe={probe!r}, distribution={distribution!r}; "
            "choices: probe='cotangent' with distribution='sphere'"
        )
    chunks = {"example_chunk": example_chunk, "output_chunk": output_chunk}
    if probe == "cotangent":
        return _cotangent_estimator(wrt, num_probes, distribution, orthogonal, **chunks)
    return _tangent_estimator(wrt, num_probes, distribution, **chunks)


def _cotangent_estimator(wrt, num_probes, distribution, orthogonal, example_chunk, output_chunk) -> Estimator:
    def draw(key, outputs):
        size = math.prod(outputs.shape[1:])
        if orthogonal:
            return draw_orthogonal_probes(key, num_probes, size, outputs.dtype)
        return draw_probes(distribution, key, num_probes, size, outputs.dtype)

    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        keys = example_keys(key, num_examples(inputs), first_example)
        outputs = outputs_by_example(apply_fn, params, inputs)
        num_outputs = math.prod(outputs.shape[1:])
        if orthogonal and num_probes > num_outputs:
            raise ValueError(
                f"num_probes={num_probes} exceeds the {num_outputs} outputs; orthogonal probes are exact at that number"
            )

        def of_examples(params, rows, counted):
            inputs, keys = rows
            outputs, known, squared_norms = SPLIT_PULLBACKS[wrt](apply_fn, params, inputs)
            probes = jax.vmap(lambda key: draw(key, outputs), out_axes=1)(keys)
            probes = probes.reshape(num_probes, *outputs.shape)

            def of_probes(_, probes, counted_probes):
                squares = squared_norms(probes) / num_probes
                return jnp.sum(jnp.where(counted_probes[:, None] & counted, squares, 0)), squares

            total, squares = sum_over_chunks(of_probes, (), probes, output_chunk)
            return total + jnp.sum(jnp.where(counted, known, 0)), (squares.T, known, outputs)

        total, (squares, known, outputs) = sum_over_chunks(of_examples, params, (inputs, keys), example_chunk)
        # Sampling without replacement: orthogonal probes leave out the part of the space already seen.
        unseen = 1 - num_probes / num_outputs if orthogonal else 1.0
        return JacobianEstimate(
            squared_norm=total,
            per_example=known + jnp.sum(squares, axis=1),
            per_output=None,
            outputs=outputs,
            standard_error=_standard_error(squares * num_probes, unseen),
        )

    return estimate


def _tangent_estimator(wrt, num_probes, distribution, example_chunk, output_chunk) -> Estimator:
    def estimate(apply_fn, params, inputs, key=None, *, first_example=0):
        keys = example_keys(key, num_examples(inputs), first_example)

        def of_examples(params, rows, counted):
            outputs, push = random_pushforward(wrt, distribution, key, apply_fn, params, *rows)

            def of_probes(_, indices, counted_probes):
                squares = jnp.square(push(indices)) / num_probes
                mask = counted_probes[:, None, None] & counted[:, None]
                return jnp.sum(jnp.where(mask, squares, 0)), squares

            total, squares = sum_over_chunks(of_probes, (), jnp.arange(num_probes), output_chunk)
            return total, (jnp.moveaxis(squares, 0, 1), outputs)

        total, (squares, outputs) = sum_over_chunks(of_examples, params, (inputs, keys), example_chunk)
        by_probe = jnp.sum(squares, axis=2) * num_probes
        # One probe of the parameters serves all examples: only the totals are independent.
        draws = jax.lax.stop_gradient(jnp.sum(by_probe, axis=0)) if wrt == "params" else None
        return JacobianEstimate(
            squared_norm=total,
            per_example=jnp.sum(squares, axis=(1, 2)),
            per_output=jnp.sum(squares, axis=1),
            outputs=outputs,
            standard_error=_standard_error(by_probe, 1.0) if draws is None else standard_error_of_mean(draws),
            shared_draws=draws,
        )

    return estimate


def random_pushforward(
    wrt: str, distribution: str, key: Any, apply_fn: ApplyFn, params: PyTree, inputs: PyTree, keys: Any
) -> tuple[Float[Array, "n ..."], Callable[[Int[Array, " m"]], Float[Array, "m n K"]]]:
    """The outputs, and the function from the indices of tangent probes `u` to `J_i u`, in float32 or wider.

    All examples share a probe of the parameters, drawn from `key`; a probe of the inputs is drawn from each example's
    own one of `keys`.
    """
    outputs_by_example(apply_fn, params, inputs)  # raises where it is unusable
    apply_batch = close_convolutions(apply_fn)  # examples do not meet, so the batch's own derivative serves them all
    leaves, rest, join = differentiated_leaves(params if wrt == "params" else inputs, wrt)
    draw = lambda index: lambda key, leaves: draw_like(distribution, jax.random.fold_in(key, index), leaves)
    if wrt == "params":
        function = lambda leaves: apply_batch(join(leaves, rest), inputs)
        tangent = lambda index: draw(index)(key, leaves)
    else:
        function = lambda leaves: apply_batch(params, join(leaves, rest))
        tangent = lambda index: jax.vmap(draw(index))(keys, leaves)
    outputs, push = jax.linearize(function, leaves)

    def products(indices):
        moved = jax.vmap(lambda index: push(tangent(index)))(indices)
        shape = (len(indices), len(outputs), math.prod(outputs.shape[1:]))
        return moved.astype(accumulation_dtype(moved.dtype)).reshape(shape)

    return outputs, products


def _standard_error(by_probe: Float[Array, "n m"], unseen: float) -> Float[Array, ""]:
    """Of the sum over rows of the mean over independent probes; nan for one probe unless nothing is unseen."""
    count = by_probe.shape[1]
    if unseen == 0:
        return jnp.zeros((), by_probe.dtype)
    if count == 1:
        return jnp.full((), jnp.nan, by_probe.dtype)
    variance = jnp.sum(jnp.var(jax.lax.stop_gradient(by_probe), axis=1, ddof=1))
    return jnp.sqrt(unseen * variance / count)
