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
      shared_draws: ``[m]``, where all points share the probes, else None; see ``JacobianEstimate``.
    """

    value: jax.Array
    standard_error: jax.Array
    outputs: jax.Array
    shared_draws: jax.Array | None = None


Penalty = Callable[..., PenaltyValue]


def frobenius(estimator: str, *, wrt: str, **options: Any) -> Penalty:
    """The sum of the squared entries of the Jacobian, by the named estimator.

    Raises:
      ValueError: an unknown estimator, or an option that it does not take.
    """
    estimate_fn = jacobian.make_estimator(estimator, wrt=wrt, **options)

    def penalty(apply_fn, params, inputs, key, first_example) -> PenaltyValue:
        estimate = estimate_fn(apply_fn, params, inputs, key, first_example=first_example)
        return PenaltyValue(estimate.squared_norm, estimate.standard_error, estimate.outputs, estimate.shared_draws)

    return penalty


def row_norm(estimator: str, *, wrt: str, target: float = 1.0, **options: Any) -> Penalty:
    """The sum over all rows of the Jacobian of (squared norm - ``target``)^2.

    Exact by the rows, in the estimator's chunks; with the stochastic estimator unbiased, from ``2 num_probes``
    tangent probes.

    Raises:
      ValueError: an option of the estimator that the functional does not take.
    """
    cotangent = options.get("probe") == "cotangent" or options.get("orthogonal")
    if cotangent or options.get("joint"):
        given = ", ".join(f"{name}={options[name]!r}" for name in ("probe", "orthogonal", "joint") if name in options)
        raise ValueError(f"{given} has no meaning for the penalty 'row_norm'; choices: probe='tangent'")
    arguments: dict[str, Any] = {"chunk": options.get("output_chunk"), "example_chunk": options.get("example_chunk")}
    if estimator == "stochastic":
        arguments |= {"num_probes": options.get("num_probes", 1), "distribution": options.get("distribution")}

    def penalty(apply_fn, params, inputs, key, first_example) -> PenaltyValue:
        estimate = jacobian.row_norm(
            apply_fn, params, inputs, wrt=wrt, target=target, key=key, first_example=first_example, **arguments
        )
        return PenaltyValue(estimate.value, estimate.standard_error, estimate.outputs, estimate.shared_draws)

    return penalty


def row_sum(estimator: str, *, wrt: str, target: float = 1.0, **options: Any) -> Penalty:
    """The sum over all rows of the Jacobian of (sum of entries - ``target``)^2, exact from one forward-mode pass.

    It takes no estimator: that one serves the evaluation alone, but for its ``example_chunk``.
    """

    def penalty(apply_fn, params, inputs, key, first_example) -> PenaltyValue:
        example_chunk = options.get("example_chunk")
        estimate = jacobian.row_sum(apply_fn, params, inputs, wrt=wrt, target=target, example_chunk=example_chunk)
        return PenaltyValue(estimate.value, estimate.standard_error, estimate.outputs)

    return penalty


PENALTIES: dict[str, Callable[..., Penalty]] = {"frobenius": frobenius, "row_norm": row_norm, "row_sum": row_sum}
