"""Sums of squared Jacobian entries and other functionals of the Jacobian, for any JAX function.

`make_estimator(name, wrt=..., **options)` makes `estimator(apply_fn, params, inputs, key) -> JacobianEstimate`. The
other functionals, `contract`, `row_norm`, `row_sum` and `bilinear`, are plain functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jacreg_train.jacobian.auto import Candidate, Choice, auto, choose
from jacreg_train.jacobian.contraction import contract
from jacreg_train.jacobian.coupling import check_per_example, for_separate_examples
from jacreg_train.jacobian.estimate import Estimator, JacobianEstimate, standard_error_of_mean
from jacreg_train.jacobian.exact import chunked, exact
from jacreg_train.jacobian.explanation import Explanation, explain
from jacreg_train.jacobian.functionals import FunctionalEstimate, bilinear, row_norm, row_sum
from jacreg_train.jacobian.layerwise import layerwise
from jacreg_train.jacobian.options import check_choice, check_names
from jacreg_train.jacobian.stochastic import stochastic

ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "exact": exact,
    "chunked": chunked,
    "layerwise": layerwise,
    "stochastic": stochastic,
    "auto": auto,
}


def make_estimator(name: str, *, wrt: str = "params", **options: Any) -> Estimator:
    """An estimator of `sum J^2` from the table `ESTIMATORS`.

    Args:
        name: a key of `ESTIMATORS`.
        wrt: "params" or "inputs".
        **options: the factory's keyword arguments.

    Raises:
        ValueError: the name is not in the table, or an option has no meaning for it; when called, the examples of
            `apply_fn` meet although the estimator is not `joint`.
    """
    check_choice("estimator", name, tuple(ESTIMATORS))
    check_names(f"the estimator {name!r}", ESTIMATORS[name], options)
    estimator = ESTIMATORS[name](wrt=wrt, **options)
    return estimator if options.get("joint") else for_separate_examples(estimator)


__all__ = [
    "ESTIMATORS",
    "Candidate",
    "Choice",
    "Estimator",
    "Explanation",
    "FunctionalEstimate",
    "JacobianEstimate",
    "bilinear",
    "check_per_example",
    "choose",
    "contract",
    "explain",
    "make_estimator",
    "row_norm",
    "row_sum",
    "standard_error_of_mean",
]
