"""What `precision` costs in accuracy: S and its gradient in half precision beside float64, on the CNN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian
from jacreg_train.training.step import eval_apply
from models import make_model

pytestmark = pytest.mark.xdist_group("precision")  # in one worker, that its fixtures are made once
# Relative errors of S, and of its gradient in the Euclidean norm, that each precision stays below.
BOUNDS = {"float32": (1e-5, 1e-4), "float16": (5e-4, 5e-3), "bfloat16": (5e-3, 3e-2)}
CASES = [
    *(("layerwise", {}, precision) for precision in BOUNDS),
    ("chunked", {}, "bfloat16"),
    ("stochastic", {"num_probes": 10, "orthogonal": True}, "bfloat16"),
]


def value_and_gradient(dtype, params, images, name="layerwise", **options):
    model = make_model("cnn", num_classes=10, widths=(8, 8), strides=(1, 2), dense_width=16, dtype=dtype)
    estimator = jacobian.make_estimator(name, **options)
    value = lambda params: estimator(eval_apply(model, {}), params, images, jax.random.key(0)).squared_norm
    return jax.jit(jax.value_and_grad(value))(params)


@pytest.fixture(scope="module")
def problem():
    model = make_model("cnn", num_classes=10, widths=(8, 8), strides=(1, 2), dense_width=16)
    images = np.random.default_rng(0).normal(size=(4, 8, 8, 1))
    params, _ = model.init(jax.random.key(0), jnp.asarray(images, jnp.float32))
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), float), params)
        exact = jax.tree.map(np.asarray, value_and_gradient(None, double, jnp.asarray(images), "exact"))
    assert exact[0].dtype == np.float64
    return params, jnp.asarray(images, jnp.float32), exact


@pytest.mark.parametrize(("name", "options", "precision"), CASES, ids=str)
def test_accuracy_against_float64(problem, name, options, precision):
    params, images, (wanted, wanted_gradient) = problem
    value, gradient = value_and_gradient(precision, params, images, name, **options)
    assert value.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    flat = lambda tree: np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
    error = abs(float(value) - wanted) / wanted
    gap = np.linalg.norm(flat(gradient) - flat(wanted_gradient)) / np.linalg.norm(flat(wanted_gradient))
    of_value, of_gradient = BOUNDS[precision]
    assert error < of_value
    assert gap < of_gradient
    if precision != "float32":  # it does compute in half precision
        assert gap > 1e-5
