"""The term that the loss adds: a functional of the Jacobian, by name.

Every penalty has one signature, ``penalty(apply_fn, params, inputs, key, first_example) -> PenaltyValue``,
and sums over the examples; the training step divides by their number and multiplies by the weight.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jacreg_train import jacobian


class PenaltyValue(NamedTuple):
    """A penalty on n points.

    Attributes:
      value: scalar, summed over examples and outputs.
      standard_error: scalar, of ``value``; 0 where it is exact, nan where it cannot be told.
      outputs: ``[n, ...]``, the network's outputs on the points; the task loss uses them where it can.
    """

    value: jax.Array
    standard_error: jax.Array
    outputs: jax.Array


Penalty = Callable[..., PenaltyValue]


def frobenius(estimator: str, *, wrt: str, **options: Any) -> Penalty:
    """The sum of the squared entries of the Jacobian, by the named estimator.

    Raises:
      ValueError: an unknown estimator, or an option that it does not take.
    """
    estimate_fn = jacobian.make_estimator(estimator, wrt=wrt, **options)

    def penalty(apply_fn, params, inputs, key, first_example) -> PenaltyValue:
        estimate = estimate_fn(apply_fn, params, inputs, key, first_example=first_example)
        return PenaltyValue(estimate.squared_norm, estimate.standard_error, estimate.outputs)

    return penalty


PENALTIES: dict[str, Callable[..., Penalty]] = {"frobenius": frobenius}
