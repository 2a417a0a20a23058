"""NaN and infinity: found inside the training step, named outside it.

The step returns one flag for each thing that must be finite: the scalars of ``SCALARS``, every gradient, and
every array of the state that the update would give (an optimiser's moments can overflow where the gradient
has not). ``describe`` turns the flags into a line.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SCALARS = ("train/task_loss", "train/penalty", "train/loss")


def finite_flags(scalars: Mapping[str, jax.Array], grads: Any, updated: Any) -> jax.Array:
    """Whether each is finite: bool ``[len(names_of(grads, updated))]``, in the order of those names.

    Args:
      scalars: values by name; one of ``SCALARS`` that is not there (a penalty in a plain step) counts as finite.
      grads: of the parameters.
      updated: what the step would change.
    """
    leaves = [scalars.get(name, jnp.zeros(())) for name in SCALARS]
    leaves += [leaf for _, leaf in _float_leaves(grads) + _float_leaves(updated)]
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])


def all_finite(flags: jax.Array) -> jax.Array:
    """Whether all flags are True.

    By a sort: XLA writes a plain conjunction of the many flags anew into the update of every array, which was half of
    the time to compile a ResNet18's plain step (jaxlib 0.10.2).
    """
    return jnp.sort(flags)[0]


def names_of(grads: Any, updated: Any) -> list[str]:
    """The names of the flags; of the arguments only names and types are used."""
    return [
        *SCALARS,
        *(f"the gradient of {name}" for name, _ in _float_leaves(grads)),
        *(f"the updated {name}" for name, _ in _float_leaves(updated)),
    ]


def describe(flags: np.ndarray, names: Sequence[str], metrics: Mapping[str, Any]) -> str:
    """What is not finite, on one line: the scalars with their values, and the first bad array.

    Args:
      flags: at least one of them is False.
      names: of the flags.
      metrics: holds the scalars' values.
    """
    bad = [name for name, finite in zip(names, flags, strict=True) if not finite]
    scalars = [f"{name} is {float(metrics[name])}" for name in bad if name in SCALARS]
    arrays = [name for name in bad if name not in SCALARS]
    if arrays:
        scalars.append(f"{arrays[0]} is not finite (the first of {len(arrays)} arrays)")
    return ", ".join(scalars)


def keep_unless(ok: jax.Array, new: Any, old: Any) -> Any:
    """``new`` where ``ok``, else ``old``; both are pytrees of one structure."""
    return jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, old)


def _float_leaves(tree: Any) -> list[tuple[str, jax.Array]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
