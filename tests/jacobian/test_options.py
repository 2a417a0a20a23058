"""Options that are wrong or have no meaning are refused before anything runs, with field, value and choices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian

X, W = np.ones((3, 2)), np.ones((2, 4))


def linear(w, x):
    return x @ w


# (estimator, options) -> what the message has to name
REFUSED = [
    ("layerwize", {}, ["estimator", "'layerwize'", *jacobian.ESTIMATORS]),
    (None, {}, ["estimator", "None", *jacobian.ESTIMATORS]),
    *((name, {"wrt": "weights"}, ["wrt", "'weights'", "params", "inputs"]) for name in jacobian.ESTIMATORS),
    ("exact", {"example_chunk": 2}, ["example_chunk", "2", "'exact'", "wrt"]),
    ("exact", {"num_probes": 2}, ["num_probes", "2", "'exact'", "wrt"]),
    ("layerwise", {"num_probes": 2}, ["num_probes", "2", "'layerwise'", "example_chunk", "output_chunk"]),
    ("layerwise", {"chunk": 2}, ["chunk", "2", "'layerwise'", "example_chunk", "output_chunk"]),
    ("chunked", {"distribution": "sphere"}, ["distribution", "'sphere'", "'chunked'", "example_chunk"]),
    *(
        (name, {field: value}, [field, repr(value), "1 or more"])
        for name in ("chunked", "layerwise", "stochastic")
        for field in ("example_chunk", "output_chunk")
        for value in (0, -1, 2.0, "2", True)
    ),
    ("stochastic", {"num_probes": 0}, ["num_probes", "0", "1 or more"]),
    ("stochastic", {"num_probes": None}, ["num_probes", "None", "1 or more"]),
    ("stochastic", {"probe": "forward"}, ["probe", "'forward'", "cotangent", "tangent"]),
    ("stochastic", {"distribution": "normal"}, ["distribution", "'normal'", "rademacher", "gaussian", "sphere"]),
    ("stochastic", {"orthogonal": "yes"}, ["orthogonal", "'yes'", "True", "False"]),
    ("stochastic", {"orthogonal": True, "probe": "tangent"}, ["orthogonal=True", "'tangent'", "cotangent"]),
    ("stochastic", {"orthogonal": True, "distribution": "gaussian"}, ["orthogonal=True", "'gaussian'", "sphere"]),
]


@pytest.mark.parametrize(("name", "options", "named"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(name, options, named):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is checked word by word
        jacobian.make_estimator(name, **options)
    for word in named:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_table_covers_what_is_promised():
    assert {"exact", "chunked", "layerwise", "stochastic"} <= set(jacobian.ESTIMATORS)


@pytest.mark.parametrize("probe", ["cotangent", "tangent"])
def test_stochastic_needs_a_key(probe):
    with pytest.raises(ValueError, match="key=None"):
        jacobian.make_estimator("stochastic", probe=probe)(linear, W, X)


def test_more_orthogonal_probes_than_outputs():
    with pytest.raises(ValueError, match="num_probes=5 exceeds the 4 outputs"):
        jacobian.make_estimator("stochastic", orthogonal=True, num_probes=5)(linear, W, X, jax.random.key(0))


ESTIMATORS = [*((name, {}) for name in jacobian.ESTIMATORS), ("layerwise", {"example_chunk": 2})]
# name -> (apply_fn, params, inputs, error, message)
UNUSABLE = {
    "no example axis in the outputs": (lambda w, x: jnp.sum(x @ w), W, X, ValueError, "joint|example axis"),
    "several outputs": (lambda w, x: (x @ w, x), W, X, TypeError, "one real floating-point array"),
    "integer outputs": (lambda w, x: (x @ w).astype(int), W, X, TypeError, "floating-point array, not int"),
    "complex outputs": (lambda w, x: x @ w + 1j, W, X, TypeError, "floating-point array, not complex"),
    "a parameter that is no array": (lambda w, x: w[1](x @ w[0]), (W, jnp.tanh), X, TypeError, "equinox.partition"),
    "complex parameters": (lambda w, x: (x @ w).real, W + 1j, X, TypeError, "complex"),
    "inputs of different lengths": (
        lambda w, x: x["a"] @ w,
        W,
        {"a": X, "b": np.ones(2)},
        ValueError,
        "share a leading example axis",
    ),
    "inputs without an axis": (lambda w, x: x * w, W, np.float64(1.0), ValueError, "share a leading example axis"),
    "no inputs": (lambda w, x: w, W, {}, ValueError, "share a leading example axis"),
}


@pytest.mark.parametrize(("name", "options"), ESTIMATORS, ids=str)
@pytest.mark.parametrize("fault", UNUSABLE)
def test_unusable_functions_are_named(fault, name, options):
    apply_fn, params, inputs, error, message = UNUSABLE[fault]
    with pytest.raises(error, match=message):
        jacobian.make_estimator(name, **options)(apply_fn, params, inputs, jax.random.key(0))


@pytest.mark.parametrize("name", ["chunked", "layerwise", "stochastic"])
def test_a_while_loop_that_has_no_reverse_derivative(name):
    """An error that names the operation, and never a wrong number."""

    def apply(w, x):
        return jax.lax.while_loop(lambda h: jnp.sum(jnp.abs(h[0])) > 1, lambda h: h * 0.5 * w[0, 0], x @ w)

    with pytest.raises(ValueError, match="while"):
        jacobian.make_estimator(name)(apply, W, X[:1], jax.random.key(0))
