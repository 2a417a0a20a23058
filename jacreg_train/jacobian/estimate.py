"""What an estimator returns."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jacreg_train.jacobian.trees import ApplyFn, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JacobianEstimate:
    """The sum of squared Jacobian entries on a batch, and what came with it.

    For `J[i, k, j] = d f_k(x_i) / d theta_j` (or `d x_i[j]`) on `n` examples with `K` outputs each; nothing is
    divided by `n`, `K` or 2. Norms are float32, or float64 where the function computes in float64.

    Attributes:
        squared_norm: `sum_ikj J[i, k, j]^2`, or its unbiased estimate.
        per_example: `sum_kj J[i, k, j]^2`, shape `[n]`.
        per_output: `sum_j J[i, k, j]^2`, shape `[n, K]`; None where the estimator does not separate outputs.
        outputs: `f`'s outputs, shape `[n, ...]`, from the same forward pass.
        standard_error: of `squared_norm`, a scalar: 0 for exact estimators, nan where one probe gives none.
        shared_draws: `squared_norm` by each of the `m` probes where all examples share these, else None. The draws of
            several parts of a batch, by the same key, add up; their sums have the whole batch's standard error.
    """

    squared_norm: Float[Array, ""]
    per_example: Float[Array, " n"]
    per_output: Float[Array, "n K"] | None
    outputs: Float[Array, "n ..."]
    standard_error: Float[Array, ""]
    shared_draws: Float[Array, " m"] | None = None


def standard_error_of_mean(draws: Float[Array, " m"]) -> Float[Array, ""]:
    """`sqrt(sum_i (x_i - mean)^2 / (m (m - 1)))`; nan for one draw."""
    return jnp.std(jax.lax.stop_gradient(draws), ddof=1) / jnp.sqrt(len(draws))


def exact_estimate(
    total: Float[Array, ""], rows: Float[Array, "n K"], outputs: Float[Array, "n ..."]
) -> JacobianEstimate:
    """An estimate without error from the squared row norms and their sum."""
    return JacobianEstimate(total, jnp.sum(rows, axis=1), rows, outputs, jnp.zeros((), total.dtype))


class Estimator(Protocol):
    """`estimator(apply_fn, params, inputs, key)`; pure, traceable, differentiable in params and inputs."""

    def __call__(
        self, apply_fn: ApplyFn, params: PyTree, inputs: PyTree, key: Any = None, *, first_example: Any = 0
    ) -> JacobianEstimate:
        """Estimates the squared Jacobian norm.

        Args:
            apply_fn: `apply_fn(params, inputs) -> outputs` with a leading axis `n` on every input and on the outputs,
                whose i-th output depends on the i-th input only.
            params: any pytree; leaves that are not floating-point get no gradient and count for nothing.
            inputs: array or pytree of arrays with the leading axis `n`.
            key: a JAX random key; needed by stochastic estimators only.
            first_example: index of the first example in the whole batch, so that probes do not depend on how many
                devices share it.
        """
        ...
