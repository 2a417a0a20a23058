"""The dense Jacobian by other means than ours: one example at a time, `jax.jacrev`, squares, sums, `jax.grad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jacreg_train.jacobian import JacobianEstimate

# Undoes what tests/conftest.py sets: options of a compilation as a user's program has it.
FULL_OPTIMISATION: dict[str, Any] = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}


def split(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The floating-point leaves of a tree, and the function that puts such leaves in their places."""
    leaves, structure = jax.tree.flatten(tree)
    is_float = lambda leaf: isinstance(leaf, float) or jnp.issubdtype(getattr(leaf, "dtype", int), np.floating)
    places = [i for i, leaf in enumerate(leaves) if is_float(leaf)]

    def join(floats):
        filled = dict(zip(places, floats, strict=True))
        return jax.tree.unflatten(structure, [filled.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [jnp.asarray(leaves[i]) for i in places], join


def wide(part: jax.Array) -> jax.Array:
    return part.astype(jnp.promote_types(part.dtype, jnp.float32))


def dense(apply_fn: Callable, params: Any, inputs: Any, wrt: str) -> JacobianEstimate:
    """What an exact estimator has to return."""

    def rows_of(x):
        batch = jax.tree.map(lambda leaf: leaf[None], x)
        leaves, join = split(params if wrt == "params" else batch)
        one = lambda leaves: apply_fn(*((join(leaves), batch) if wrt == "params" else (params, join(leaves))))[0]
        parts = jax.jacrev(one)(leaves) if leaves else []
        outputs = jax.eval_shape(one, leaves)
        squares = (jnp.sum(wide(part) ** 2, axis=tuple(range(outputs.ndim, part.ndim))) for part in parts)
        return sum(squares, jnp.zeros(outputs.shape)).ravel()

    outputs = apply_fn(params, inputs)
    rows = jax.lax.map(rows_of, inputs)
    return JacobianEstimate(jnp.sum(rows), jnp.sum(rows, axis=1), rows, outputs, jnp.zeros(()))


def mixed(estimate: JacobianEstimate) -> jax.Array:
    """A scalar that depends on outputs, `per_example` and `squared_norm`, each entry with a weight of its own."""
    weigh = lambda part: jnp.sum(wide(part) * jnp.cos(jnp.arange(part.size)).reshape(part.shape))
    return 0.7 * estimate.squared_norm + weigh(estimate.outputs) + weigh(estimate.per_example)


def rows_only(estimate: JacobianEstimate) -> jax.Array:
    assert estimate.per_output is not None
    return jnp.sum(jnp.square(estimate.per_output))


FUNCTIONALS = {"mixed": mixed, "squared_norm": lambda estimate: estimate.squared_norm, "rows_only": rows_only}


def compare(
    estimators: dict[str, Callable],
    apply_fn: Callable,
    params: Any,
    inputs: Any,
    wrt: str,
    *,
    gradients_of: Sequence[str] = ("mixed",),
    rtol: float = 1e-9,
    compiler_options: dict[str, Any] | None = None,
) -> None:
    """Asserts that estimators give the dense Jacobian's values and gradients, in all floating-point leaves.

    Args:
        estimators: label -> `estimator(apply_fn, params, inputs)`.
        gradients_of: names in `FUNCTIONALS`; none for values alone.
        rtol: relative to the largest entry of the compared arrays.
        compiler_options: of the program that computes all of it.
    """
    leaves, join = split((params, inputs))

    def everything(estimator, leaves):
        def value(leaves, functional):
            estimate = estimator(apply_fn, *join(leaves))
            return FUNCTIONALS[functional](estimate), estimate

        found = {}
        estimate = None if gradients_of else estimator(apply_fn, *join(leaves))
        for name in gradients_of:
            found[f"gradient of {name}"], estimate = jax.grad(value, has_aux=True)(leaves, name)
        found |= {field: getattr(estimate, field) for field in ("outputs", "squared_norm", "per_example", "per_output")}
        return found

    oracle = lambda apply_fn, params, inputs: dense(apply_fn, params, inputs, wrt)
    everyone = {**estimators, "oracle": oracle}
    run = lambda leaves: {label: everything(estimator, leaves) for label, estimator in everyone.items()}
    results = jax.jit(run, compiler_options=compiler_options)(leaves)
    wanted = results.pop("oracle")
    for label, found in results.items():
        for name, got in found.items():
            if got is not None:
                assert_close(got, wanted[name], f"{label}: {name}", rtol)


def assert_close(got: Any, want: Any, what: str, rtol: float) -> None:
    """Compares trees entry by entry, to `rtol` of the largest entry."""
    assert str(jax.tree.structure(got)) == str(jax.tree.structure(want)), what
    double = lambda tree: [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    scale = max((np.max(np.abs(leaf), initial=0) for leaf in double(want)), default=0)
    for ours, theirs in zip(double(got), double(want), strict=True):
        assert ours.shape == theirs.shape, f"{what} has the shape {ours.shape}, not {theirs.shape}"
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * max(scale, 1e-3), err_msg=what)
