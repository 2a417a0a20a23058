"""Whether a function of a batch treats its examples apart, read off its jaxpr.

The function is traced, not run, for a number of examples that is a prime larger than any other size. A value that
depends on the inputs then shows its example axis as a size divisible by that prime. Where the axis vanishes (a mean
over the batch) or appears twice (`x @ x.T`), examples meet; so they do in the operations of `ALONG`. Meeting without a
change of shape in another operation (a gather from other examples' rows, say) goes unseen.

Random numbers drawn for the whole batch are found in the same way: the function of a batch of one would draw others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jacreg_train.jacobian.estimate import Estimator
from jacreg_train.jacobian.jaxprs import CALLS, called_jaxpr, dependent_outputs, inline_calls, needed_equations
from jacreg_train.jacobian.trees import ApplyFn, PyTree, check_arrays, num_examples, vary, varying_axes

PRIMES = (1009, 1013, 1019, 1021, 1031, 1033)

# What makes or takes random keys, or draws from them.
RANDOM = frozenset(
    {"random_bits", "random_fold_in", "random_seed", "random_split", "random_wrap", "rng_bit_generator", "threefry2x32"}
)

# Operations that bring together what lies along axes of their operands without a change of shape.
ALONG: dict[str, Callable[[dict[str, Any]], tuple[int, ...]]] = {
    "rev": lambda params: params["dimensions"],
    "sort": lambda params: (params["dimension"],),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), lambda params: (params["axis"],)),
}


def check_per_example(apply_fn: ApplyFn, params: PyTree, inputs: PyTree) -> None:
    """Raises where `apply_fn` is *joint*, so that an example's Jacobian is not defined. Nothing is computed.

    Args:
        apply_fn, params, inputs: as for an estimator.

    Raises:
        ValueError: examples meet, in batch normalisation with batch statistics for instance; or random numbers are
            drawn for the whole batch; or `apply_fn` takes some numbers of examples only.
    """
    sizes = {size for leaf in jax.tree.leaves((params, inputs)) for size in jnp.shape(leaf)}
    prime = next(p for p in PRIMES if all(size % p or not size for size in sizes))
    try:
        inlined = inline_calls(_trace(apply_fn, params, inputs, prime)).jaxpr
    except Exception as error:
        try:
            _trace(apply_fn, params, inputs, 2)
        except Exception:  # a function of one example only, or a fault that its own trace will show
            return
        raise ValueError(
            f"whether the examples of apply_fn meet cannot be told: it takes two, but not {prime} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); it must take any number"
        ) from error
    examples = set(inlined.invars[len(inlined.invars) - len(jax.tree.leaves(inputs)) :])
    met = _where_examples_meet(inlined, prime, set(examples))
    if met is not None:
        raise ValueError(
            f"apply_fn is joint: its examples meet in the operation {met!r}, so the Jacobian of one example is not "
            "defined; use running statistics (train=False), a norm without batch statistics, or an estimator with "
            "joint=True (exact, chunked)"
        )
    drawn = _drawn_for_the_batch(inlined, prime, examples)
    if drawn is not None:
        raise ValueError(
            f"apply_fn draws random numbers for the whole batch, in the operation {drawn!r}, so one example alone is "
            "another function; put one key per example into the inputs"
        )


def for_separate_examples(estimator: Estimator) -> Estimator:
    """The estimator, refusing functions whose examples meet."""

    @functools.wraps(estimator)
    def checked(apply_fn, params, inputs, key=None, *, first_example=0):
        params, inputs, key = separate_examples(apply_fn, params, inputs, key)
        return estimator(apply_fn, params, inputs, key, first_example=first_example)

    return checked


def separate_examples(apply_fn: ApplyFn, params: PyTree, inputs: PyTree, *rest: PyTree) -> tuple[PyTree, ...]:
    """The arguments, after the checks of their examples; inside `shard_map` all belong to the device's own examples."""
    check_arrays(params, "params")
    num_examples(inputs)  # raises where there is no common axis
    check_per_example(apply_fn, params, inputs)
    return vary((params, inputs, *rest), varying_axes(params, inputs))


def _trace(apply_fn: ApplyFn, params: PyTree, inputs: PyTree, n: int) -> core.ClosedJaxpr:
    """The jaxpr for `n` examples, whose arguments end with the inputs' leaves."""
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), leaf.dtype), inputs)
    leaves, structure = jax.tree.flatten(params)
    is_array = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]

    def of_arrays(arrays, batch):
        given = iter(arrays)
        taken = [next(given) if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
        return apply_fn(structure.unflatten(taken), batch)

    try:  # with parameters of the trace's own, which the function may change: running statistics of a Flax module
        arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
        return jax.make_jaxpr(of_arrays)(arrays, batch)
    except Exception:  # a function that looks at its parameters' values
        return jax.make_jaxpr(lambda batch: apply_fn(params, batch))(batch)


def _where_examples_meet(jaxpr: core.Jaxpr, prime: int, depends: set[Any]) -> str | None:
    """The first operation whose result depends on examples without showing one example axis; None if there is none."""
    for index in needed_equations(jaxpr):
        eqn = jaxpr.eqns[index]
        touched = [not isinstance(atom, core.Literal) and atom in depends for atom in eqn.invars]
        if not any(touched):
            continue
        name = eqn.primitive.name
        for axis in ALONG[name](eqn.params) if name in ALONG else ():
            if any(
                touch and _is_example_axis(atom, axis, prime) for atom, touch in zip(eqn.invars, touched, strict=True)
            ):
                return name
        reached = [var for var, reach in zip(eqn.outvars, dependent_outputs(eqn, touched), strict=True) if reach]
        for var in reached:
            if _example_axes(var, prime) != 1:
                return name
        depends.update(reached)
        if name in CALLS:
            body = called_jaxpr(eqn)
            met = _where_examples_meet(
                body, prime, {var for var, touch in zip(body.invars, touched, strict=True) if touch}
            )
            if met is not None:
                return met
    return None


def _drawn_for_the_batch(jaxpr: core.Jaxpr, prime: int, depends: set[Any]) -> str | None:
    """The first random operation that makes something for each example and depends on none; None if there is none."""
    for index in needed_equations(jaxpr):
        eqn = jaxpr.eqns[index]
        if any(not isinstance(atom, core.Literal) and atom in depends for atom in eqn.invars):
            depends.update(eqn.outvars)
        elif eqn.primitive.name in RANDOM and any(_example_axes(var, prime) for var in eqn.outvars):
            return eqn.primitive.name
    return None


def _is_example_axis(atom: Any, axis: int, prime: int) -> bool:
    size = atom.aval.shape[axis]
    return size > 0 and size % prime == 0


def _example_axes(var: Any, prime: int) -> int:
    """How many axes of the value grow with the number of examples."""
    return sum(size > 0 and size % prime == 0 for size in getattr(var.aval, "shape", (prime,)))
