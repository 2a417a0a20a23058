"""Every case of the table against the dense Jacobian, with every estimator: values and gradients in float64."""

import pytest

from tests.jacobian.cases import CASES
from tests.jacobian.configurations import all_estimators, num_outputs, some_estimators
from tests.jacobian.oracle import compare

RTOL = {"leaves_of_two_precisions": 1e-5}  # part of it computes in float32


@pytest.mark.parametrize(
    ("name", "wrt"), [*((name, "params") for name in CASES), *((name, "inputs") for name in [*CASES][::8])]
)
def test_equals_the_dense_jacobian(name, wrt):
    apply_fn, params, inputs = CASES[name]()
    estimators = some_estimators(name, num_outputs(apply_fn, params, inputs), wrt)
    compare(estimators, apply_fn, params, inputs, wrt, rtol=RTOL.get(name, 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("wrt", ["params", "inputs"])
@pytest.mark.parametrize("name", CASES)
def test_every_estimator_equals_the_dense_jacobian(name, wrt):
    apply_fn, params, inputs = CASES[name]()
    estimators = all_estimators(num_outputs(apply_fn, params, inputs), wrt)
    gradients_of = ("mixed", "squared_norm")
    compare(estimators, apply_fn, params, inputs, wrt, gradients_of=gradients_of, rtol=RTOL.get(name, 1e-9))
