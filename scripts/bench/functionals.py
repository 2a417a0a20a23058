"""Functionals of the Jacobian: memory and chunks of `contract`, and what exact parts save the probes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench import measure
from bench.cases import MODEL_CASES, make_case
from bench.results import Results
from bench.table import Settings
from bench.targets import add_target
from jacreg_train import jacobian
from jacreg_train.jacobian.layerwise import params_pullback
from jacreg_train.jacobian.probes import draw_probes, example_keys


def two_layers(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["a"]) @ params["b"]


def contract_memory(results: Results, settings: Settings, n: int, size: int, width: int) -> None:
    """What the gradient of a loss on `contract` needs above parameters and inputs, in GB (10^9 bytes)."""
    params, inputs = _shapes(n, size, width)
    program = measure.compile_program(jax.grad(_loss(size), argnums=(0, 1)), params, inputs)
    assert program.bytes is not None
    arguments = 4 * (inputs.size + sum(leaf.size for leaf in jax.tree.leaves(params)))
    name = f"GB above the arguments: contract and its gradient, {n} examples, {size} inputs and outputs, width {width}"
    add_target(results, name, (program.bytes - arguments) / 1e9, 1.0, dense=4 * n * size**2 / 1e9)


def contract_chunks(
    results: Results, settings: Settings, n: int, size: int, width: int, chunks: tuple[int, ...]
) -> None:
    """Time of the gradient with the chunk that `contract` chooses over the best of some chunks."""
    key = jax.random.key(0)
    shapes, shape = _shapes(n, size, width)
    inputs = jax.random.normal(key, shape.shape)
    params = jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape) / len(inputs[0]) ** 0.5, shapes)
    options: dict[str, dict[str, int]] = {"chosen": {}} | {str(chunk): {"chunk": chunk} for chunk in chunks}
    functions = {name: jax.grad(_loss(size, **each), argnums=(0, 1)) for name, each in options.items()}
    programs = {name: measure.compile_program(function, params, inputs) for name, function in functions.items()}
    calls = {name: lambda turn, call=program.call: call(params, inputs) for name, program in programs.items()}
    seconds = measure.time_in_turns(calls, settings.rounds, settings.patience_s)
    best = min(chunks, key=lambda chunk: min(seconds[str(chunk)]))
    fields = measure.time_fields(seconds["chosen"], seconds[str(best)])
    name = f"time: contract's own chunk over the best of {', '.join(map(str, chunks))}, {n} examples, {size} inputs"
    add_target(results, name, fields.pop("time_ratio"), 1.3, best=best, **fields)


def exact_part(results: Results, settings: Settings, model: str, n: int, distribution: str, probes: int) -> None:
    """The variance of `S` from probes when the last layer's part is exact, over that when all comes from probes."""
    case = make_case(model, n)
    variances = _variances(case.apply_fn, case.params, case.inputs, distribution, probes)
    name = f"variance: last layer exact over all from probes, {MODEL_CASES[model].title}, {distribution}"
    add_target(results, name, variances[0] / variances[1], None)


def exact_part_of_positions(results: Results, settings: Settings, n: int, distribution: str, probes: int) -> None:
    """The same for outputs at positions, as in segmentation: there the last layer has a variance with any probes."""
    keys = jax.random.split(jax.random.key(4), 3)
    params = {
        "first": jax.random.normal(keys[0], (3, 3, 3, 16)) / 27**0.5,
        "last": jax.random.normal(keys[1], (3, 3, 16, 4)) / 144**0.5,
    }

    def network(params, x):
        convolve = lambda x, kernel: jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return convolve(jax.nn.relu(convolve(x, params["first"])), params["last"])

    variances = _variances(network, params, jax.random.normal(keys[2], (n, 8, 8, 3)), distribution, probes)
    name = f"variance: last layer exact over all from probes, 2 convolutions with outputs at positions, {distribution}"
    add_target(results, name, variances[0] / variances[1], None)


def _variances(network: Any, params: Any, inputs: jax.Array, distribution: str, probes: int) -> tuple[float, float]:
    """Of the mean over `probes` probes, from the same probes: with the known part exact, and without."""
    key = jax.random.key(5)

    @jax.jit
    def standard_errors(params, inputs):
        estimate = jacobian.make_estimator("stochastic", num_probes=probes, distribution=distribution)
        outputs, squared_norms = params_pullback(network, params, inputs)
        draw = lambda key: draw_probes(distribution, key, probes, outputs[0].size, outputs.dtype)
        drawn = jax.vmap(draw, out_axes=1)(example_keys(key, len(inputs), 0))
        squares = squared_norms(drawn.reshape(probes, *outputs.shape))
        variance = jnp.sum(jnp.var(squares, axis=0, ddof=1)) / probes
        return estimate(network, params, inputs, key).standard_error ** 2, variance

    mine, whole = standard_errors(params, inputs)
    return float(mine), float(whole)


def _loss(size: int, **chunk: Any) -> Any:
    vector = jnp.ones(size)
    return lambda params, x: jnp.sum(jacobian.contract(jnp.square, two_layers, params, x, vector, **chunk) ** 2)


def _shapes(n: int, size: int, width: int) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    shape = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return {"a": shape(size, width), "b": shape(width, size)}, shape(n, size)
