"""What the last layers add to `|J|^2` without a cotangent: the squared norm of one equation's whole derivative.

Where an equation's output reaches the function's output by rearrangements, additions and changes of sign only, the
cotangents there for all `K` outputs together are an orthonormal basis. The squared norms of a weight's cotangents then
add up to `|dy/dw|^2`, the squares of all entries of the derivative of the equation's output by the weight, and that has
a closed form in the activations. A rule that does not cover the case returns None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array
from jax.extend import core
from jaxtyping import Float

from jacreg_train.jacobian.geometry import Geometry
from jacreg_train.jacobian.rules import Operand
from jacreg_train.jacobian.trees import squared_sum

Rule = Callable[[core.JaxprEqn, int, Sequence[Operand]], Array | int | None]


def known_squared_norm(
    eqn: core.JaxprEqn, position: int, operands: Sequence[Operand]
) -> Float[Array, " n"] | int | None:
    """`|dy/dw|^2` of each example for the weight `w` at `position`; a number where it is the same for all."""
    rule = KNOWN_NORMS.get(eqn.primitive.name)
    return None if rule is None else rule(eqn, position, operands)


def _dense(eqn, position, operands):
    """Every activation meets each of the weight's free entries once."""
    contracted, batched = eqn.params["dimension_numbers"]
    shape, taken = eqn.invars[position].aval.shape, (*contracted[position], *batched[position])
    other = operands[1 - position]
    if not other.per_example:
        return None
    return math.prod(size for axis, size in enumerate(shape) if axis not in taken) * squared_sum(other.value, 1)


def _convolution(eqn, position, operands):
    """Every pixel meets, at each position that sees it, the output features of its group once."""
    numbers = eqn.params["dimension_numbers"]
    if position != 1 or not operands[0].per_example or eqn.params["batch_group_count"] != 1:
        return None
    geometry, spec = Geometry.of(eqn), numbers.lhs_spec
    pixels = jnp.transpose(operands[0].value, [0, *(1 + axis for axis in (spec[0], *spec[2:], spec[1]))])
    padded = geometry.padded(pixels)
    patches = sum(squared_sum(geometry.shifted(padded, offset), 1) for offset in geometry.offsets)
    return eqn.invars[1].aval.shape[numbers.rhs_spec[0]] // geometry.groups * patches


def _addition(eqn, position, operands):
    """Every entry of the output has one derivative of 1 or -1, also where the bias is broadcast."""
    return math.prod(eqn.outvars[0].aval.shape)


KNOWN_NORMS: dict[str, Rule] = {
    "dot_general": _dense,
    "conv_general_dilated": _convolution,
    "add": _addition,
    "sub": _addition,
}
