"""Convolutions whose derivatives stay fast: in loops, in second derivatives, and with one kernel per example.

XLA on CPU rewrites a convolution into its fast layout (batch, space, features) in the entry computation only. Inside a
loop the weight and input gradients keep the layout that differentiation gave them and take a path that was a hundred
times slower when measured. `canonicalize_convolutions` does the same rewriting on the jaxpr.

JAX writes the input gradient of a strided convolution as a convolution of a dilated input, and that one's weight
gradient in a form that XLA on CPU does not know. But convolution, input gradient and weight gradient are each other's
derivatives. `convolve_p` and `input_gradient_p` say so: every derivative of any order is one of the three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jacreg_train.jacobian.jaxprs import evaluate, evaluate_equation

convolve_p = core.Primitive("convolve")
input_gradient_p = core.Primitive("convolution_input_gradient")


def convolve(x: Array, kernel: Array, **params: Any) -> Array:
    """`lax.conv_general_dilated` by the parameters of its primitive, closed under differentiation."""
    return convolve_p.bind(x, kernel, **params)


def _convolution(x: Any, kernel: Any, **params: Any) -> Array:
    return lax.conv_general_dilated_p.bind(x, kernel, **params)


def input_gradient(cotangent: Any, kernel: Any, *, shape: tuple[int, ...], **params: Any) -> Array:
    """The cotangent of a convolution's input of the given shape."""
    x = jax.ShapeDtypeStruct(shape, kernel.dtype)
    return jax.linear_transpose(lambda x: _convolution(x, kernel, **params), x)(cotangent)[0].astype(kernel.dtype)


def weight_gradient(x: Any, cotangent: Any, *, shape: tuple[int, ...], **params: Any) -> Array:
    """The cotangent of a convolution's kernel of the given shape."""
    kernel = jax.ShapeDtypeStruct(shape, x.dtype)
    return jax.linear_transpose(lambda kernel: _convolution(x, kernel, **params), kernel)(cotangent)[0]


IMPLEMENTATIONS: dict[core.Primitive, Callable[..., Array]] = {
    convolve_p: _convolution,
    input_gradient_p: input_gradient,
}


def _register(primitive: core.Primitive) -> None:
    implementation = IMPLEMENTATIONS[primitive]

    def abstract(x, kernel, **params):
        outputs = jax.make_jaxpr(lambda x, kernel: implementation(x, kernel, **params))(x, kernel)
        return outputs.out_avals[0]

    def batch(arguments, axes, **params):
        """Joins an example axis of the first operand with its batch axis, where the kernel has none."""
        numbers, (x, kernel), (x_axis, kernel_axis) = params["dimension_numbers"], arguments, axes
        if kernel_axis is not None:
            function = lambda x, kernel: implementation(x, kernel, **params)
            return jax.vmap(function, axes)(x, kernel), 0
        place, out_place = numbers.lhs_spec[0], numbers.out_spec[0]
        if primitive is input_gradient_p:
            place, out_place = out_place, place
            batched = list(params["shape"])
            batched[out_place] *= x.shape[x_axis]
            params = {**params, "shape": tuple(batched)}
        x = jnp.moveaxis(x, x_axis, place)
        size, examples = x.shape[place : place + 2]
        x = x.reshape(*x.shape[:place], size * examples, *x.shape[place + 2 :])
        y = primitive.bind(x, kernel, **params)
        return y.reshape(*y.shape[:out_place], size, examples, *y.shape[out_place + 1 :]), out_place

    primitive.def_impl(lambda x, kernel, **params: implementation(x, kernel, **params))
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=False))


_register(convolve_p)
_register(input_gradient_p)
ad.defbilinear(
    convolve_p,
    lambda bar, x, kernel, **params: input_gradient_p.bind(bar, kernel, shape=x.aval.shape, **params),
    lambda bar, x, kernel, **params: weight_gradient(x, bar, shape=kernel.aval.shape, **params),
)
ad.defbilinear(
    input_gradient_p,
    lambda bar, cotangent, kernel, shape, **params: convolve_p.bind(bar, kernel, **params),
    lambda bar, cotangent, kernel, shape, **params: weight_gradient(bar, cotangent, shape=kernel.aval.shape, **params),
)


def close_convolutions(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` by convolutions that are closed under differentiation: the same values, and fast second derivatives."""

    def closed(*args):
        jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
        if not _has_convolution(jaxpr.jaxpr):
            return fun(*args)
        outputs = evaluate(jaxpr, jax.tree.leaves(args), _evaluate_closed)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return closed


def _evaluate_closed(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
    if eqn.primitive.name == "conv_general_dilated" and eqn.params["batch_group_count"] == 1:
        return [convolve(*inputs, **eqn.params)]
    if eqn.primitive.name == "jit" and _has_convolution(eqn.params["jaxpr"].jaxpr):
        return evaluate(eqn.params["jaxpr"], inputs, _evaluate_closed)
    return evaluate_equation(eqn, inputs)


def canonicalize_convolutions(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` with every convolution in canonical layout; the same values, for use as the body of a loop.

    Differentiate first: derivatives of the returned function are right but again in other layouts.
    """

    def canonical(*args):
        jaxpr, shapes = jax.make_jaxpr(fun, return_shape=True)(*args)
        outputs = evaluate(jaxpr, jax.tree.leaves(args), _evaluate_canonically)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return canonical


def _evaluate_canonically(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
    if eqn.primitive.name == "conv_general_dilated":
        return [_canonical_convolution(*inputs, **eqn.params)]
    if eqn.primitive in IMPLEMENTATIONS:
        implementation = IMPLEMENTATIONS[eqn.primitive]
        return [canonicalize_convolutions(lambda *inputs: implementation(*inputs, **eqn.params))(*inputs)]
    if eqn.primitive.name == "jit" and _has_convolution(eqn.params["jaxpr"].jaxpr):
        return evaluate(eqn.params["jaxpr"], inputs, _evaluate_canonically)
    return evaluate_equation(eqn, inputs)


def _has_convolution(jaxpr: core.Jaxpr) -> bool:
    def holds(eqn):
        nested = [eqn.params["jaxpr"].jaxpr] if eqn.primitive.name == "jit" else []
        convolution = eqn.primitive.name == "conv_general_dilated" or eqn.primitive in IMPLEMENTATIONS
        return convolution or any(map(_has_convolution, nested))

    return any(map(holds, jaxpr.eqns))


def _canonical_convolution(x: Array, kernel: Array, *, dimension_numbers: Any, **params: Any) -> Array:
    x_spec, kernel_spec, out_spec = dimension_numbers
    space = len(x_spec) - 2
    out_order = (out_spec[0], *out_spec[2:], out_spec[1])
    y = lax.conv_general_dilated_p.bind(
        jnp.transpose(x, (x_spec[0], *x_spec[2:], x_spec[1])),
        jnp.transpose(kernel, (*kernel_spec[2:], kernel_spec[1], kernel_spec[0])),
        dimension_numbers=canonical_numbers(space),
        **params,
    )
    return jnp.transpose(y, [out_order.index(axis) for axis in range(space + 2)])


def canonical_numbers(space: int) -> lax.ConvDimensionNumbers:
    """Layouts (batch, space, features) for input and output and (space, features in, features out) for the kernel."""
    batched = (0, space + 1, *range(1, space + 1))
    return lax.ConvDimensionNumbers(batched, (space + 1, space, *range(space)), batched)
