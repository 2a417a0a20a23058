"""Convolutions in the form that XLA's CPU backend runs fast, also inside loops.

XLA on CPU rewrites convolutions into its fast layout (batch, space, features) in the entry computation only. Inside
a loop the weight and input gradients of a convolution keep the layout that differentiation gave them and take the
slow path (a hundred times slower was measured). `canonicalize_convolutions` does the same rewriting on the jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core

from jacreg_train.jacobian.jaxprs import evaluate, evaluate_equation


def canonicalize_convolutions(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` with every convolution in canonical layout; the same values, for use as the body of a loop.

    Differentiate first: derivatives of the returned function are right but again in other layouts.
    """

    def canonical(*args):
        jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
        outputs = evaluate(jaxpr, jax.tree.leaves(args), _evaluate_canonically)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return canonical


def _evaluate_canonically(eqn: core.JaxprEqn, inputs: list[Any]) -> list[Any]:
    if eqn.primitive.name == "conv_general_dilated":
        return [_convolution(*inputs, **eqn.params)]
    if eqn.primitive.name == "jit" and _has_convolution(eqn.params["jaxpr"].jaxpr):
        return evaluate(eqn.params["jaxpr"], inputs, _evaluate_canonically)
    return evaluate_equation(eqn, inputs)


def _has_convolution(jaxpr: core.Jaxpr) -> bool:
    def holds(eqn):
        nested = [eqn.params["jaxpr"].jaxpr] if eqn.primitive.name == "jit" else []
        return eqn.primitive.name == "conv_general_dilated" or any(map(_has_convolution, nested))

    return any(map(holds, jaxpr.eqns))


def _convolution(lhs: Array, rhs: Array, *, dimension_numbers: lax.ConvDimensionNumbers, **params: Any) -> Array:
    numbers = dimension_numbers
    space = len(numbers.lhs_spec) - 2
    lhs_order = (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1])
    rhs_order = (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0])
    out_order = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    spatial = tuple(range(1, space + 1))
    batched = (0, space + 1, *spatial)  # batch, feature, space: where each is in a canonical array
    canonical = lax.ConvDimensionNumbers(batched, (space + 1, space, *range(space)), batched)
    output = lax.conv_general_dilated_p.bind(
        jnp.transpose(lhs, lhs_order), jnp.transpose(rhs, rhs_order), dimension_numbers=canonical, **params
    )
    return jnp.transpose(output, [out_order.index(axis) for axis in range(space + 2)])
