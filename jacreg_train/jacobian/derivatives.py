"""Each example's Jacobian as a linear map that is made once and applied to many vectors.

The maps keep apart what belongs to one example and what all examples share. A vector that is the same for all of them,
a column or row index for instance, is taken through the shared part once: through the first layer when it is pushed
forward from the inputs, through the last one when it is pulled back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jacreg_train.jacobian.convolutions import close_convolutions
from jacreg_train.jacobian.jaxprs import depends_on_arguments
from jacreg_train.jacobian.trees import (
    ApplyFn,
    PyTree,
    differentiated_leaves,
    is_float,
    num_examples,
    one_example,
    vary,
    varying_axes,
)

Leaves = list[Array]
OfExample = Callable[[PyTree], tuple[Leaves, Callable[[Leaves], Array]]]


def example_function(apply_fn: ApplyFn, params: PyTree, wrt: str) -> OfExample:
    """`of_example(x) -> (leaves, f)`: what example `x` is differentiated with respect to, and its output of that."""
    apply_one = close_convolutions(one_example(apply_fn))

    def of_params(x):
        leaves, rest, join = differentiated_leaves(params, "params")
        return leaves, lambda leaves: apply_one(join(leaves, rest), x)

    def of_inputs(x):
        leaves, rest, join = differentiated_leaves(x, "inputs")
        return leaves, lambda leaves: apply_one(params, join(leaves, rest))

    return of_params if wrt == "params" else of_inputs


def pushforwards(
    of_example: OfExample, inputs: PyTree
) -> tuple[Float[Array, "n ..."], Callable[[Leaves], Float[Array, "c n ..."]]]:
    """The outputs, and the function from vectors, leaves `[c, ...]`, to each example's `J u`."""
    return _linear_maps(jax.linearize, of_example, inputs)


def pullbacks(
    of_example: OfExample, inputs: PyTree
) -> tuple[Float[Array, "n ..."], Callable[[Float[Array, "c ..."]], Leaves]]:
    """The outputs, and the function from vectors `[c, ...]` to each example's `J^T v`, leaves `[c, n, ...]`."""
    outputs, pull = _linear_maps(jax.vjp, of_example, inputs)
    return outputs, lambda vectors: pull(vectors)[0]


def _linear_maps(linearize: Callable[..., Any], of_example: OfExample, inputs: PyTree) -> tuple[Any, Any]:
    structure: list[Any] = []  # of the linear map as a pytree of residuals, filled in while it is traced

    def of_one(x):
        leaves, function = of_example(x)
        output, linear = linearize(function, leaves)
        residuals, structure[:] = _flatten(linear)
        return output, residuals

    example = example_types(inputs)
    depends = depends_on_arguments(of_one, example)
    axes = jax.tree.map(lambda depends: 0 if depends else None, depends)
    outputs, residuals = jax.vmap(of_one, out_axes=(0, axes[1]))(inputs)
    apply_one = lambda residuals, vector: structure[0].unflatten(residuals)(vector)
    of_examples = jax.vmap(apply_one, (axes[1], None), axis_size=num_examples(inputs))

    def apply(vectors):
        return jax.vmap(of_examples, (None, 0))(residuals, vary(vectors, varying_axes(inputs)))

    return outputs, apply


def _flatten(tree: PyTree) -> tuple[list[Array], list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, [structure]


def example_types(inputs: PyTree) -> PyTree:
    """Shapes and types of one example."""
    return jax.tree.map(lambda leaf: jax.typeof(leaf).update(shape=leaf.shape[1:]), inputs)


def basis(ids: Int[Array, " c"], like: Sequence[Any]) -> Leaves:
    """For each id the vector that is 1 at that entry of all leaves together and 0 elsewhere: leaves `[c, ...]`."""
    start, found = 0, []
    for leaf in like:
        size = math.prod(leaf.shape)
        rows = (ids[:, None] - start == jnp.arange(size)).astype(leaf.dtype)
        found.append(rows.reshape(len(ids), *leaf.shape))
        start += size
    return found


def vector_leaves(field: str, vector: PyTree, side: PyTree, n: int, wrt: str) -> tuple[Leaves, list[int | None]]:
    """The leaves of `vector` that belong to floating-point leaves of `side`, and where each has its example axis.

    Args:
        field: the argument's name, for errors.
        vector: pytree like `side`, the parameters or the inputs; each leaf with or without a leading axis `n`.

    Raises:
        ValueError: the tree or a shape does not fit.
    """
    if jax.tree.structure(vector) != jax.tree.structure(side):
        structures = f"{jax.tree.structure(side)}, not {jax.tree.structure(vector)}"
        raise ValueError(f"{field} must be a tree like {wrt}: {structures}")
    pairs = [
        (v, leaf) for v, leaf in zip(jax.tree.leaves(vector), jax.tree.leaves(side), strict=True) if is_float(leaf)
    ]
    axes = [example_axis(field, v, jnp.shape(leaf) if wrt == "params" else jnp.shape(leaf)[1:], n) for v, leaf in pairs]
    return [jnp.asarray(v) for v, _ in pairs], axes


def example_axis(field: str, value: Any, shape: tuple[int, ...], n: int) -> int | None:
    """0 where `value` has one entry of the given shape per example, None where all examples share it.

    Raises:
        ValueError: it has neither shape.
    """
    if jnp.shape(value) not in (shape, (n, *shape)):
        raise ValueError(
            f"{field} has shape {jnp.shape(value)}; choices: {shape} (shared) or {(n, *shape)} (per example)"
        )
    return None if jnp.shape(value) == shape else 0
