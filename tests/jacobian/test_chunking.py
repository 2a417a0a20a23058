"""Chunks: never another value, memory of the gradient that does not grow with n, programs of one size."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jacreg_train import jacobian
from jacreg_train.jacobian.chunking import sum_over_chunks
from tests.jacobian.cases import CASES, X, normal, weights
from tests.jacobian.configurations import estimator
from tests.jacobian.oracle import assert_close, compare

CHUNKED = ("chunked", "layerwise", "stochastic")


@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_all_uses_of_an_estimate(wrt):
    """Gradients of the sum alone, of `per_output` alone, and of all parts together take different ways."""
    apply_fn, params, inputs = CASES["dense"]()
    chunks = {"example_chunk": 2, "output_chunk": 1}
    estimators = {name: estimator(name, wrt=wrt, **chunks) for name in ("chunked", "layerwise")}
    compare(estimators, apply_fn, params, inputs, wrt, gradients_of=("mixed", "squared_norm", "rows_only"))
    probes = {"num_probes": 2, "orthogonal": True}
    estimators = {"stochastic": estimator("stochastic", wrt=wrt, **chunks, **probes)}
    compare(estimators, apply_fn, params, inputs, wrt, gradients_of=("mixed", "squared_norm"))


@pytest.mark.parametrize("options", [{}, {"probe": "tangent"}, {"orthogonal": True}], ids=str)
@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_remainders(name, wrt, options):
    """n = 7 in chunks of 3, K = 5 (or 5 probes) in chunks of 2: as unchunked, in float32 to 1e-6."""
    if options and name != "stochastic":
        pytest.skip("has no probes")
    if name == "stochastic":
        options = options | {"num_probes": 5}
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), weights(w=(3, 5), b=(5,)))
    inputs = normal(0, 7, 3).astype(jnp.float32)

    def run(params, **chunks):
        estimator = jacobian.make_estimator(name, wrt=wrt, **options, **chunks)
        of = lambda p: estimator(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]), p, inputs, jax.random.key(0))
        return {"estimate": of(params), "gradient": jax.grad(lambda p: of(p).squared_norm)(params)}

    choices = [{"example_chunk": 3}, {"output_chunk": 2}, {"example_chunk": 3, "output_chunk": 2}]
    choices += [{"example_chunk": 100, "output_chunk": 100}, {"example_chunk": 1, "output_chunk": 1}]
    whole, *parts = jax.jit(lambda params: [run(params, **chunks) for chunks in [{}, *choices]])(params)
    for chunks, part in zip(choices, parts, strict=True):
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(part))
        assert_close(part["estimate"], whole["estimate"], f"{chunks}: estimate", 1e-6)
        for got, want in zip(jax.tree.leaves(part["gradient"]), jax.tree.leaves(whole["gradient"]), strict=True):
            assert_close(got, want, f"{chunks}: gradient", 1e-6)


def test_more_rows_than_counted():
    """Rows that pad the last chunk reach neither the sum nor its gradient, whatever the block makes of them."""

    def block(shared, rows, counted):
        parts = shared * rows**2
        return jnp.sum(jnp.where(counted, parts, 0)), parts

    for n, chunk in ((1, 1), (5, 2), (7, 3), (3, None)):
        rows = jnp.arange(1.0, n + 1)
        value = lambda shared, rows: sum_over_chunks(block, shared, rows, chunk)  # noqa: B023
        both = jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))
        (total, parts), (of_shared, of_rows) = both(jnp.asarray(2.0), rows)
        assert float(total) == 2 * float(of_shared) == 2 * float(jnp.sum(rows**2))
        np.testing.assert_array_equal(parts, 2 * rows**2)
        np.testing.assert_array_equal(of_rows, 4 * rows)


def network(p, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    x = jnp.tanh(lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", dimension_numbers=numbers))
    x = jnp.tanh(lax.conv_general_dilated(x, p["v"], (2, 2), "SAME", dimension_numbers=numbers))
    return x.mean((1, 2)) @ p["readout"]


def lowered(n, wrt, name, **options):
    """The gradient's program for `n` images, float32."""
    estimator = jacobian.make_estimator(name, wrt=wrt, **options)
    value = lambda p, x: estimator(network, p, x, jax.random.key(0)).squared_norm
    shapes = {"w": (3, 3, 3, 8), "v": (3, 3, 8, 8), "readout": (8, 4)}
    params = {k: jax.ShapeDtypeStruct(shape, jnp.float32) for k, shape in shapes.items()}
    return jax.jit(jax.grad(value)).lower(params, jax.ShapeDtypeStruct((n, 8, 8, 3), jnp.float32))


SETTINGS: list[tuple[str, str, dict]] = [
    ("chunked", "params", {}),
    ("layerwise", "params", {}),
    ("layerwise", "params", {"output_chunk": 2}),
    ("layerwise", "inputs", {}),
    ("stochastic", "params", {}),
    ("stochastic", "params", {"probe": "tangent"}),
]


@pytest.mark.parametrize(("name", "wrt", "options"), SETTINGS, ids=str)
def test_memory_of_the_gradient(name, wrt, options):
    """n = 200 needs at most 1.2 times the memory of n = 20 in chunks of 10, the images themselves left out."""

    def needed(n):
        figures: Any = lowered(n, wrt, name, example_chunk=10, **options).compile().memory_analysis()
        images = n * 8 * 8 * 3 * 4
        arguments = figures.argument_size_in_bytes - images
        return arguments + figures.output_size_in_bytes + figures.temp_size_in_bytes - figures.alias_size_in_bytes

    few, many = needed(20), needed(200)
    assert few > 10 * 8 * 8 * 8 * 4  # a chunk's activations at least: the figure is one of memory
    assert many <= 1.2 * few


@pytest.mark.parametrize(("name", "wrt", "options"), SETTINGS, ids=str)
def test_program_does_not_grow_with_the_number_of_chunks(name, wrt, options):
    lines = [len(lowered(n, wrt, name, example_chunk=5, **options).as_text().splitlines()) for n in (20, 200)]
    assert lines[1] <= lines[0] + 5


def test_memory_of_outputs_in_chunks():
    """All K = 64 outputs of `chunked` at once hold 64 gradients of the weights, one at a time only a few."""
    w, x = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((4, 64), jnp.float32)

    def needed(**chunks):
        estimator = jacobian.make_estimator("chunked", **chunks)
        value = lambda w, x: estimator(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w), w, x).squared_norm
        figures: Any = jax.jit(jax.grad(value)).lower(w, x).compile().memory_analysis()
        return figures.temp_size_in_bytes

    assert needed(output_chunk=2) < needed() / 8


def test_closed_over_tracers():
    """What the function closes over may itself be traced and differentiated, in chunks too."""
    inputs = X(3)

    def value(frozen, w, **chunks):
        apply = lambda w, x: jnp.tanh(x @ frozen) @ w
        return jacobian.make_estimator("layerwise", **chunks)(apply, w, inputs).squared_norm

    frozen, w = weights(a=(3, 3), b=(3, 2)).values()
    want = jax.jit(jax.grad(value, (0, 1)))(frozen, w)
    for chunks in ({"example_chunk": 2}, {"example_chunk": 2, "output_chunk": 1}):
        got = jax.jit(jax.grad(lambda f, w: value(f, w, **chunks), (0, 1)))(frozen, w)  # noqa: B023
        assert_close(got, want, str(chunks), 1e-10)
