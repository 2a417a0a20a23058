"""Evaluating and reading jaxprs equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

EvaluateEquation = Callable[[core.JaxprEqn, list[Any]], list[Any]]


def evaluate_equation(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
    """The equation's outputs, as a list, by its own primitive."""
    with eqn.ctx.manager:
        outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def read(environment: dict[core.Var, Any], atom: Any) -> Any:
    """The value of a variable or a literal."""
    return atom.val if isinstance(atom, core.Literal) else environment[atom]


def evaluate(
    jaxpr: core.ClosedJaxpr, arguments: Sequence[Any], evaluate_eqn: EvaluateEquation = evaluate_equation
) -> list[Any]:
    """The jaxpr's outputs, each equation evaluated by `evaluate_eqn`."""
    environment = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    environment.update(zip(jaxpr.jaxpr.invars, arguments, strict=True))
    for eqn in jaxpr.jaxpr.eqns:
        outputs = evaluate_eqn(eqn, [read(environment, atom) for atom in eqn.invars])
        environment.update(zip(eqn.outvars, outputs, strict=True))
    return [read(environment, atom) for atom in jaxpr.jaxpr.outvars]


def hoist(fun: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], list[Any]]:
    """`hoisted(closed_over, *arguments)` for arguments of these shapes, and the values that `fun` closes over.

    Functions with a derivative of their own must not close over values that are being traced.
    """
    jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*arguments)

    def hoisted(closed_over, *arguments):
        closed = core.ClosedJaxpr(jaxpr.jaxpr, closed_over)
        return jax.tree.unflatten(jax.tree.structure(shapes), evaluate(closed, jax.tree.leaves(arguments)))

    return hoisted, list(jaxpr.consts)


def inline_calls(jaxpr: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The same jaxpr with nested `jit` and `remat` calls replaced by their equations."""

    def evaluate_inline(eqn: core.JaxprEqn, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name == "jit":
            return evaluate(eqn.params["jaxpr"], inputs, evaluate_inline)
        if eqn.primitive.name in ("remat2", "checkpoint"):
            return evaluate(core.ClosedJaxpr(eqn.params["jaxpr"], ()), inputs, evaluate_inline)
        return evaluate_equation(eqn, inputs)

    inlined = jax.make_jaxpr(lambda *arguments: evaluate(jaxpr, arguments, evaluate_inline))
    return inlined(*(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.jaxpr.invars))


def is_inexact(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def depends_on_arguments(fun: Callable[..., Any], *arguments: Any) -> Any:
    """For each leaf of `fun`'s result, in the result's structure, whether it may depend on the arguments."""
    jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*arguments)
    depends = set(jaxpr.jaxpr.invars)
    reached = lambda atom: not isinstance(atom, core.Literal) and atom in depends
    for eqn in jaxpr.jaxpr.eqns:
        if any(map(reached, eqn.invars)):
            depends.update(eqn.outvars)
    return jax.tree.unflatten(jax.tree.structure(shapes), [reached(atom) for atom in jaxpr.jaxpr.outvars])


def needed_equations(jaxpr: core.Jaxpr) -> list[int]:
    """Indices of the equations that the outputs need, in order."""
    live = {atom for atom in jaxpr.outvars if not isinstance(atom, core.Literal)}
    needed = []
    for index in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[index]
        if eqn.effects or any(var in live for var in eqn.outvars):
            needed.append(index)
            live.update(atom for atom in eqn.invars if not isinstance(atom, core.Literal))
    return needed[::-1]
