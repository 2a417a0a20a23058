"""Estimators inside `jit`, `vmap`, `grad` of `grad` and `shard_map`, and probes that do not depend on any of them."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import jacobian
from tests.jacobian.cases import X, normal, weights
from tests.jacobian.oracle import assert_close, dense

EXACT: list[tuple[str, dict]] = [
    ("exact", {}),
    ("chunked", {}),
    ("chunked", {"example_chunk": 2, "output_chunk": 1}),
    ("layerwise", {}),
    ("layerwise", {"example_chunk": 2, "output_chunk": 1}),
]
STOCHASTIC: list[tuple[str, dict]] = [
    ("stochastic", {"num_probes": 2}),
    ("stochastic", {"num_probes": 2, "example_chunk": 2, "orthogonal": True}),
    ("stochastic", {"num_probes": 2, "probe": "tangent"}),
    ("stochastic", {"num_probes": 3, "probe": "tangent", "example_chunk": 2, "output_chunk": 1}),
]
KEY = 5


def network(p, x):
    return jnp.sin(jnp.tanh(x @ p["w"] + p["b"]) @ p["v"])  # nothing is known of it without probes


def value(name, wrt="params", **options):
    estimator = jacobian.make_estimator(name, wrt=wrt, **options)

    def of(params, inputs, key, **more):
        estimate = estimator(network, params, inputs, key, **more)
        return estimate.squared_norm + jnp.sum(estimate.per_example**2) + jnp.sum(estimate.outputs**3)

    return of


def arguments():
    return weights(w=(3, 2), b=(2,), v=(2, 3)), X(3), jax.random.key(KEY)


@pytest.mark.parametrize(("name", "options"), EXACT + STOCHASTIC, ids=str)
@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_jit_and_vmap(name, options, wrt):
    """Over parameters, inputs and keys, as one by one; eager and jitted alike."""
    params, inputs, key = arguments()
    gradient = jax.value_and_grad(value(name, wrt, **options), (0, 1))
    many_params = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 0.3]), params)
    many = (many_params, jnp.stack([inputs, inputs - 0.2]), jnp.stack([key, jax.random.key(6)]))
    one_by_one = lambda *args: [gradient(*jax.tree.map(lambda leaf: leaf[i], args)) for i in range(2)]  # noqa: B023
    one_key = lambda params, inputs, key: jax.vmap(gradient, (0, 0, None))(params, inputs, key[0])
    found, found_one_key, wanted = jax.jit(lambda *a: (jax.vmap(gradient)(*a), one_key(*a), one_by_one(*a)))(*many)
    assert_close(found, jax.tree.map(lambda *leaves: np.stack(leaves), *wanted), "vmap", 1e-10)
    assert_close(jax.tree.map(lambda leaf: leaf[0], found_one_key), wanted[0], "vmap with one key", 1e-10)


@pytest.mark.parametrize("name", jacobian.ESTIMATORS)
def test_without_jit(name):
    params, inputs, key = arguments()
    assert_close(value(name)(params, inputs, key), jax.jit(value(name))(params, inputs, key), name, 1e-10)


def penalty_of_the_gradient(of):
    """Reverse over reverse: `d |dS|^2`."""
    return jax.grad(lambda *args: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jax.grad(of)(*args))))


@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_gradient_of_the_gradient(wrt):
    params, inputs, key = arguments()

    def run(params, inputs):
        oracle = lambda p: dense(network, p, inputs, wrt).squared_norm
        found = {}
        for name, options in EXACT:
            estimator = jacobian.make_estimator(name, wrt=wrt, **options)
            found[f"{name} {options}"] = penalty_of_the_gradient(
                lambda p, e=estimator: e(network, p, inputs, key).squared_norm
            )(params)
        return found, penalty_of_the_gradient(oracle)(params)

    found, wanted = jax.jit(run)(params, inputs)
    for label, got in found.items():
        assert_close(got, wanted, label, 1e-9)


@pytest.mark.parametrize(("name", "options"), STOCHASTIC, ids=str)
@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_probes_depend_on_the_place_in_the_whole_batch_only(name, options, wrt):
    """A batch in two calls, each told where it begins, has the probes of the whole; so have chunks."""
    params, _, key = arguments()
    inputs = normal(0, 5, 3)
    estimator = jacobian.make_estimator(name, wrt=wrt, **options)
    run = jax.jit(lambda x, first: estimator(network, params, x, key, first_example=first).per_example)
    whole = run(inputs, 0)
    parts = jnp.concatenate([run(inputs[:2], 0), run(inputs[2:], 2)])
    np.testing.assert_allclose(parts, whole, rtol=1e-10)
    if not (wrt == "params" and options.get("probe") == "tangent"):  # there all examples share their probes
        assert not np.allclose(run(inputs[2:], 0), whole[2:])
    unchunked = {k: v for k, v in options.items() if "chunk" not in k}
    other = jacobian.make_estimator(name, wrt=wrt, **unchunked)(network, params, inputs, key)
    np.testing.assert_allclose(other.per_example, whole, rtol=1e-10)


@pytest.mark.parametrize(("name", "options"), STOCHASTIC, ids=str)
def test_typed_and_raw_keys(name, options):
    params, inputs, key = arguments()
    of = value(name, **options)
    both = jax.jit(lambda key, raw: (of(params, inputs, key), of(params, inputs, raw)))(key, jax.random.PRNGKey(KEY))
    np.testing.assert_allclose(both[0], both[1], rtol=1e-12)
    assert float(both[0]) != float(jax.jit(of)(params, inputs, jax.random.key(KEY + 1)))


def test_examples_have_probes_of_their_own():
    """Two equal examples do not share a probe, except where all examples share the tangent in parameter space."""
    params, inputs, key = arguments()
    inputs = jnp.stack([inputs[0], inputs[0]])
    for options in ({}, {"probe": "tangent", "wrt": "inputs"}, {"orthogonal": True, "wrt": "inputs"}):
        first, second = jacobian.make_estimator("stochastic", **options)(network, params, inputs, key).per_example
        assert float(first) != float(second)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
from jax.sharding import AxisType, PartitionSpec as P
from tests.jacobian.cases import normal, weights
from tests.jacobian.test_transformations import EXACT, STOCHASTIC, value

mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
params, inputs, key = weights(w=(3, 2), b=(2,), v=(2, 3)), normal(0, 6, 3), jax.random.key(5)

def on_devices(of, checked):
    def local(params, inputs):
        first = jax.lax.axis_index("data") * len(inputs)
        part = lambda params: of(params, inputs, key, first_example=first)
        if checked:  # values know over which axes they vary, and the sum over devices is part of the function
            return jax.value_and_grad(lambda params: jax.lax.psum(part(params), "data"))(params)
        return jax.lax.psum(jax.value_and_grad(part)(params), "data")
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=checked)

for wrt in ("params", "inputs"):
    for name, options in EXACT[::2] + STOCHASTIC[1::2]:
        of = value(name, wrt, **options)
        want = jax.jit(jax.value_and_grad(lambda p, x: of(p, x, key)))(params, inputs)
        for checked in (False, True):
            try:
                got = jax.jit(on_devices(of, checked))(params, inputs)
                same = [np.allclose(a, b, rtol=1e-9) for a, b in zip(*map(jax.tree.leaves, (got, want)))]
                print("right" if all(same) else "wrong", wrt, name, options, checked)
            except Exception as error:
                print("error", wrt, name, options, checked, type(error).__name__, str(error).splitlines()[0])
"""


def test_shard_map():
    """On two virtual devices as on one, with `check_vma` off and on (the default of `shard_map`)."""
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * 2 * (len(EXACT[::2]) + len(STOCHASTIC[1::2])), done.stderr
    assert [line for line in lines if not line.startswith("right")] == []
