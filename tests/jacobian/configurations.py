"""The estimators of the table with the options under which they are exact."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable

import jax

from jacreg_train import jacobian

CHUNKS: tuple[dict, ...] = ({}, {"example_chunk": 2}, {"output_chunk": 1}, {"example_chunk": 2, "output_chunk": 1})


def exact_options(name: str, num_outputs: int) -> list[dict]:
    """The options to try for an estimator: its chunk options, and as many orthogonal probes as outputs."""
    known = inspect.signature(jacobian.ESTIMATORS[name]).parameters
    probes = {"num_probes": max(num_outputs, 1), "orthogonal": num_outputs > 0} if "num_probes" in known else {}
    return [chunks | probes for chunks in CHUNKS if set(chunks) <= set(known)]


def estimator(name: str, **options) -> Callable:
    """`estimator(apply_fn, params, inputs)`, the key given where one is needed."""
    made = jacobian.make_estimator(name, **options)
    return lambda apply_fn, params, inputs: made(apply_fn, params, inputs, jax.random.key(7))


def all_estimators(num_outputs: int, wrt: str) -> dict[str, Callable]:
    """label -> estimator, for all of the table and all their chunk options."""
    return {
        f"{name} {options}": estimator(name, wrt=wrt, **options)
        for name in jacobian.ESTIMATORS
        for options in exact_options(name, num_outputs)
    }


def some_estimators(case: str, num_outputs: int, wrt: str) -> dict[str, Callable]:
    """A layerwise one for each case and another for every third, chosen by its name so that a table meets them all."""
    labels = all_estimators(num_outputs, wrt)
    draw = zlib.crc32(f"{case} {wrt}".encode())
    layerwise = [label for label in labels if label.startswith("layerwise")]
    others = [label for label in labels if label not in layerwise]
    chosen = [layerwise[draw // 3 % len(layerwise)]] + [others[draw // 3 % len(others)]] * (draw % 3 == 0)
    return {label: labels[label] for label in chosen}


def num_outputs(apply_fn: Callable, params, inputs) -> int:
    """K, the number of outputs of one example."""
    outputs = jax.eval_shape(apply_fn, params, inputs)
    return outputs.size // len(outputs) if len(outputs) else 1
