"""Multiply-adds of a function, counted in the jaxpr that the compiler is given.

The compiler's own `cost_analysis()` counts a loop's body once. Here a body counts as often as it runs. Only matrix
products and convolutions count. A convolution counts its products of two entries; those with its padding, or with the
holes of a dilated input, do not, so that a convolution and its derivatives of any order count the same. Code whose
result is not used is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval


def multiply_adds(fun: Callable[..., Any], *arguments: Any, platform: str | None = None) -> int:
    """How many multiply-adds `fun` takes at these arguments; nothing runs.

    Args:
        fun: a traceable function.
        *arguments: arrays or their shapes.
        platform: whose branch counts where code depends on the platform; None: the default backend's.

    Raises:
        ValueError: matrix products in a `while` loop, whose number of rounds is not known, or in branches that
            differ in cost and are chosen at run time.
    """
    return count(jax.make_jaxpr(fun)(*arguments), platform)


def count(jaxpr: core.ClosedJaxpr, platform: str | None = None) -> int:
    """`multiply_adds` of a traced function."""
    live, _ = partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))
    return _of_jaxpr(live, platform or jax.default_backend())


def _of_jaxpr(jaxpr: core.Jaxpr, platform: str) -> int:
    return sum(_of_equation(eqn, platform) for eqn in jaxpr.eqns)


def _of_equation(eqn: core.JaxprEqn, platform: str) -> int:
    counts = COUNTS.get(eqn.primitive.name)
    if counts:
        return counts(eqn)
    if eqn.primitive.name == "scan":
        return eqn.params["length"] * _of_jaxpr(eqn.params["jaxpr"].jaxpr, platform)
    if eqn.primitive.name == "cond":
        return _of_branches(eqn, platform)
    nested = sum(_of_jaxpr(jaxpr, platform) for jaxpr in _nested(eqn.params.values()))
    if nested and eqn.primitive.name == "while":
        raise ValueError("matrix products in a while loop: how often it runs is not known before it does")
    return nested


def _of_branches(eqn: core.JaxprEqn, platform: str) -> int:
    branches, platforms = eqn.params["branches"], eqn.params.get("branches_platforms")
    if platforms is not None:
        mine = next(branch for branch, names in zip(branches, platforms, strict=True) if not names or platform in names)
        return _of_jaxpr(mine.jaxpr, platform)
    counts = {_of_jaxpr(branch.jaxpr, platform) for branch in branches}
    if len(counts) > 1:
        raise ValueError(f"branches chosen at run time cost {sorted(counts)} multiply-adds: the count is not known")
    return counts.pop()


def _nested(values: Any) -> list[core.Jaxpr]:
    """The functions among an equation's parameters: of calls, of custom derivatives, and of loops."""
    found = []
    for value in values:
        if isinstance(value, core.ClosedJaxpr):
            found.append(value.jaxpr)
        elif isinstance(value, core.Jaxpr):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _nested(value)
    return found


def _dot_general(eqn: core.JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    return math.prod(_shape(eqn.outvars[0])) * math.prod(shape[axis] for axis in contracted)


def _convolution(eqn: core.JaxprEqn) -> int:
    return _products(eqn, _shape(eqn.invars[0]), _shape(eqn.outvars[0]))


def _convolution_input_gradient(eqn: core.JaxprEqn) -> int:
    """Its products are those of the convolution whose output has the cotangent's shape."""
    return _products(eqn, eqn.params["shape"], _shape(eqn.invars[0]))


def _products(eqn: core.JaxprEqn, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> int:
    numbers, kernel = eqn.params["dimension_numbers"], _shape(eqn.invars[1])
    x_spec, kernel_spec, out_spec = numbers
    total = outputs[out_spec[0]] * outputs[out_spec[1]] * kernel[kernel_spec[1]]
    geometry = [eqn.params[name] for name in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")]
    for axis, (stride, (low, _), x_dilation, kernel_dilation) in enumerate(zip(*geometry, strict=True)):
        starts = stride * np.arange(outputs[out_spec[2 + axis]]) - low
        met = np.add.outer(starts, kernel_dilation * np.arange(kernel[kernel_spec[2 + axis]]))
        last = (inputs[x_spec[2 + axis]] - 1) * x_dilation
        total *= int(np.sum((met >= 0) & (met <= last) & (met % x_dilation == 0)))
    return total


def _shape(atom: Any) -> tuple[int, ...]:
    return atom.aval.shape


COUNTS: dict[str, Callable[[core.JaxprEqn], int]] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "convolve": _convolution,  # the core's own
    "convolution_input_gradient": _convolution_input_gradient,  # the core's own
}
