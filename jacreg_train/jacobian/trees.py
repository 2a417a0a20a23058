"""Parameters and inputs as flat lists: which leaves are differentiated, and one example's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

PyTree = Any
ApplyFn = Callable[[PyTree, PyTree], Array]


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def split_floats(tree: PyTree) -> tuple[list[Array], list[Any], Callable[[Any, Any], PyTree]]:
    """The floating-point leaves of `tree`, the other leaves, and the function that joins two such lists again."""
    leaves, treedef = jax.tree.flatten(tree)
    chosen = [is_float(leaf) for leaf in leaves]

    def join(floats: Sequence[Any], rest: Sequence[Any]) -> PyTree:
        from_floats, from_rest = iter(floats), iter(rest)
        return treedef.unflatten([next(from_floats if c else from_rest) for c in chosen])

    floats = [jnp.asarray(leaf) for c, leaf in zip(chosen, leaves, strict=True) if c]
    return floats, [leaf for c, leaf in zip(chosen, leaves, strict=True) if not c], join


def check_arrays(tree: PyTree, what: str) -> None:
    """Raises TypeError where a leaf is no array."""
    for leaf in jax.tree.leaves(tree):
        try:
            jnp.result_type(leaf)
        except TypeError:
            raise TypeError(
                f"{what} has a leaf that is no array ({leaf!r:.80}); pass the arrays alone, by "
                "equinox.partition(module, equinox.is_array) for example, and join them with the rest inside apply_fn"
            ) from None


def differentiated_leaves(tree: PyTree, what: str) -> tuple[list[Array], list[Any], Callable[[Any, Any], PyTree]]:
    """`split_floats` of what the Jacobian is taken with respect to.

    Raises:
        TypeError: a leaf is complex; the squared norm of a complex Jacobian has several conventions.
    """
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.complexfloating):
            raise TypeError(f"{what} has a complex leaf ({jnp.result_type(leaf)}); only real leaves are handled")
    return split_floats(tree)


def num_examples(inputs: PyTree) -> int:
    """The length n of the leading axis that all leaves of `inputs` share.

    Raises:
        ValueError: there is no leaf, a leaf has no axis, or the lengths differ.
    """
    lengths = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else -1 for leaf in jax.tree.leaves(inputs)}
    if len(lengths) != 1 or -1 in lengths:
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(inputs)]
        raise ValueError(f"inputs must be arrays that share a leading example axis; their shapes are {shapes}")
    return lengths.pop()


def one_example(apply_fn: ApplyFn) -> ApplyFn:
    """The function of one example, `x` without the leading axis, made from a function of a batch."""

    def apply_one(params: PyTree, x: PyTree) -> Array:
        outputs = apply_fn(params, jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), x))
        outputs = jnp.asarray(outputs) if isinstance(outputs, np.ndarray) else outputs
        if not isinstance(outputs, Array) or not jnp.issubdtype(outputs.dtype, jnp.floating):
            kind = getattr(outputs, "dtype", type(outputs).__name__)
            raise TypeError(f"apply_fn must return one real floating-point array, not {kind}")
        if outputs.ndim == 0 or outputs.shape[0] != 1:
            raise ValueError(
                f"apply_fn must keep the example axis: for one example it returned the shape {outputs.shape}"
            )
        return outputs[0]

    return apply_one


def outputs_by_example(apply_fn: ApplyFn, params: PyTree, inputs: PyTree) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the outputs where each example is given alone; raises where `apply_fn` does not allow that."""
    return jax.eval_shape(jax.vmap(one_example(apply_fn), (None, 0)), params, inputs)


def accumulation_dtype(dtype: Any) -> Any:
    """float32 or wider: squares of a half-precision network are added in this type."""
    return jnp.promote_types(dtype, jnp.float32)


def squared_sum(values: Array, keep: int) -> Array:
    """Sum of squares over all axes but the first `keep`, accumulated in float32 or wider."""
    values = values.astype(accumulation_dtype(values.dtype))
    return jnp.sum(jnp.square(values), axis=tuple(range(keep, values.ndim)))


def varying_axes(*trees: PyTree) -> frozenset[str]:
    """The mesh axes of an enclosing `shard_map` over which some leaf differs between devices."""
    return frozenset().union(
        *(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(trees) if isinstance(leaf, Array))
    )


def vary(tree: PyTree, axes: frozenset[str]) -> PyTree:
    """Marks every leaf as differing over `axes`. Derivatives then stay on their device; the mark's own adds them up."""

    def mark(leaf):
        missing = axes - jax.typeof(leaf).manual_axis_type.varying
        return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(mark, tree) if axes else tree
