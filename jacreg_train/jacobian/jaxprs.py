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
    """The same jaxpr with nested `jit` and `remat` calls replaced by their equations, and barriers split."""

    def evaluate_inline(eqn: core.JaxprEqn, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name == "jit":
            return evaluate(eqn.params["jaxpr"], inputs, evaluate_inline)
        if eqn.primitive.name in ("remat2", "checkpoint"):
            return evaluate(core.ClosedJaxpr(eqn.params["jaxpr"], ()), inputs, evaluate_inline)
        if eqn.primitive.name == "optimization_barrier":  # of each value alone, which ties none to another
            return [evaluate_equation(eqn, [value])[0] for value in inputs]
        return evaluate_equation(eqn, inputs)

    inlined = jax.make_jaxpr(lambda *arguments: evaluate(jaxpr, arguments, evaluate_inline))
    return inlined(*(var.aval for var in jaxpr.jaxpr.invars))


def is_inexact(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


# Equations that call a jaxpr once with their own operands, and the parameter that holds it.
CALLS = {
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def called_jaxpr(eqn: core.JaxprEqn) -> core.Jaxpr:
    """The jaxpr of an equation in `CALLS`."""
    return open_jaxpr(eqn.params[CALLS[eqn.primitive.name]])


def open_jaxpr(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> core.Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr


def dependent_outputs(eqn: core.JaxprEqn, touched: Sequence[bool]) -> list[bool]:
    """For each output whether it may depend on one of the operands marked in `touched`, through control flow."""
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        return _flow(called_jaxpr(eqn), touched)
    if name == "optimization_barrier":
        return list(touched)
    if name == "cond":
        index, *operands = touched
        branches = [_flow(open_jaxpr(branch), operands) for branch in params["branches"]]
        return [index or any(outputs) for outputs in zip(*branches, strict=True)]
    if name == "scan":
        consts, carries = params["num_consts"], params["num_carry"]
        fixed, carry, xs = touched[:consts], touched[consts : consts + carries], touched[consts + carries :]
        step = lambda carry: _flow(open_jaxpr(params["jaxpr"]), [*fixed, *carry, *xs])
        carry = _until_stable(lambda carry: step(carry)[:carries], carry)
        return [*carry, *step(carry)[carries:]]
    if name == "while":
        of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
        tested, fixed, carry = touched[:of_cond], touched[of_cond : of_cond + of_body], touched[of_cond + of_body :]
        body = lambda carry: _flow(open_jaxpr(params["body_jaxpr"]), [*fixed, *carry])
        carry = _until_stable(body, carry)
        stops = any(_flow(open_jaxpr(params["cond_jaxpr"]), [*tested, *carry]))
        return [stops or reached for reached in carry]
    return [any(touched)] * len(eqn.outvars)


def _until_stable(step: Callable[[Sequence[bool]], Sequence[bool]], carry: Sequence[bool]) -> list[bool]:
    while (following := [a or b for a, b in zip(carry, step(carry), strict=True)]) != list(carry):
        carry = following
    return list(carry)


def _flow(jaxpr: core.Jaxpr, touched: Sequence[bool]) -> list[bool]:
    depends = {var for var, touch in zip(jaxpr.invars, touched, strict=True) if touch}
    reached = lambda atom: not isinstance(atom, core.Literal) and atom in depends
    for eqn in jaxpr.eqns:
        operands = [reached(atom) for atom in eqn.invars]
        if any(operands):
            outputs = dependent_outputs(eqn, operands)
            depends.update(var for var, reach in zip(eqn.outvars, outputs, strict=True) if reach)
    return [reached(atom) for atom in jaxpr.outvars]


def depends_on_arguments(fun: Callable[..., Any], *arguments: Any) -> Any:
    """For each leaf of `fun`'s result, in the result's structure, whether it may depend on the arguments."""
    return _trace_dependence(fun, *arguments)[2]


def with_dependence(fun: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """`fun(*arguments)` and `depends_on_arguments`, by one trace."""
    jaxpr, structure, depends = _trace_dependence(fun, *arguments)
    return jax.tree.unflatten(structure, evaluate(jaxpr, jax.tree.leaves(arguments))), depends


def _trace_dependence(fun: Callable[..., Any], *arguments: Any) -> tuple[core.ClosedJaxpr, Any, Any]:
    jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*arguments)
    structure = jax.tree.structure(shapes)
    depends = _flow(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.invars))
    return jaxpr, structure, jax.tree.unflatten(structure, depends)


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
