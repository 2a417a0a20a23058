"""Leaves, outputs and inputs of every form."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tests.jacobian.cases.table import CASES, Case, X, case, convolve, normal, weights

# Leaves of other kinds


@case
def leaves_of_other_types() -> Case:
    params = weights(w=(3,)) | {
        "step": 7,
        "mask": np.array([True, False, True]),
        "shift": jnp.arange(3),
        "key": jax.random.key(1),
        "old_key": jax.random.PRNGKey(2),
        "none": None,
        "scale": 0.5,
    }

    def apply(p, x):
        noise = jax.random.normal(p["key"], (3,)) + jax.random.normal(p["old_key"], (3,))
        return jnp.where(p["mask"], x, 1.0) * p["w"] * (noise + p["step"] + p["shift"]) * p["scale"]

    return apply, params, X(3)


@case
def unused_and_empty_leaves() -> Case:
    apply = lambda p, x: x @ p["w"] + p["empty"].sum() + 0 * jnp.sum(p["killed"])
    return apply, weights(w=(3, 2), unused=(4,), empty=(0, 2), killed=(2,)), X(3)


@case
def containers() -> Case:
    params = [(normal(1, 3, 2), {"b": normal(2, 2)}), normal(3)]
    return lambda p, x: jnp.tanh(x @ p[0][0] + p[0][1]["b"]) * p[1], params, X(3)


@case
def no_float_leaves() -> Case:
    return lambda p, x: jnp.sin(x @ p["w"]), {"w": jnp.ones((3, 2), int)}, X(3)


@case
def leaves_of_two_precisions() -> Case:
    params = weights(w=(3, 4), b=(4,))
    params = {"w": params["w"].astype(jnp.float32), "b": params["b"], "s": np.float32(0.7)}
    return lambda p, x: jnp.tanh(x.astype(jnp.float32) @ p["w"] * p["s"]) + p["b"], params, X(3)


# Outputs and inputs of every form


@case
def output_of_rank_one() -> Case:
    return lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], weights(w=(3, 4), v=(4,)), X(3)


@case
def output_of_rank_four() -> Case:
    apply = lambda p, x: jnp.sin(jnp.einsum("nc,cabd->nabd", x, p["w"])) * p["s"]
    return apply, weights(w=(3, 2, 1, 2), s=(2, 1, 1)), X(3)


@case
def output_is_a_weight() -> Case:
    return lambda p, x: jnp.broadcast_to(p["w"], (len(x), 3)), weights(w=(3,)), X(2)


@case
def output_is_a_function_of_weights() -> Case:
    apply = lambda p, x: jnp.broadcast_to(p["w"] ** 2 @ p["v"], (len(x), 2))
    return apply, weights(w=(3,), v=(3, 2)), X(2)


@case
def output_is_constant() -> Case:
    return lambda p, x: jnp.ones((len(x), 2)), weights(w=(3,)), X(3)


@case
def output_is_the_input() -> Case:
    return lambda p, x: x, weights(w=(3,)), X(3)


@case
def output_plus_weight_alone() -> Case:
    return (
        lambda p, x: jnp.broadcast_to(p["a"] @ p["a"][0], (len(x), 2)) + x @ p["w"],
        weights(a=(2, 2), w=(3, 2)),
        X(3),
    )


@case
def no_outputs() -> Case:
    return lambda p, x: x @ p["w"], weights(w=(3, 0)), X(3)


@case
def one_example() -> Case:
    return lambda p, x: jnp.tanh(x @ p["w"]), weights(w=(3, 2)), normal(0, 1, 3)


@case
def seven_examples_of_five_outputs() -> Case:
    return lambda p, x: jnp.tanh(x @ p["w"] + p["b"]), weights(w=(3, 5), b=(5,)), normal(0, 7, 3)


def _no_examples(apply, shapes, *shape, dtype=float) -> Callable[[], Case]:
    return lambda: (apply, weights(**shapes), jnp.zeros((0, *shape), dtype))


CASES |= {
    "no_examples": _no_examples(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]), {"w": (3, 2), "b": (2,)}, 3),
    "no_examples_of_sequences": _no_examples(lambda p, x: jnp.tanh(x @ p["w"]), {"w": (3, 2)}, 2, 3),
    "no_examples_of_ids": _no_examples(lambda p, ids: p["e"][ids].sum(1), {"e": (5, 2)}, 2, dtype=int),
    "no_examples_of_images": _no_examples(
        lambda p, x: convolve(x, p["w"], (1,), "SAME", ("NWC", "WIO", "NWC")), {"w": (3, 1, 2)}, 4, 1
    ),
}


@case
def inputs_in_a_tree() -> Case:
    def apply(p, x):
        return jnp.tanh(x["a"] @ p["w"] + p["e"][x["id"]]) * x["pair"][0] + jnp.where(x["on"], x["pair"][1], 0)[:, None]

    inputs = {"a": X(3), "id": np.array([0, 3, 0]), "pair": (X(1), X()), "on": np.array([True, False, True])}
    return apply, weights(w=(3, 2), e=(4, 2)), inputs


def dropout(p, x):
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (4,)))(x["key"])
    return (jnp.tanh(x["x"] @ p["w"]) * kept * 2) @ p["v"]


CASES |= {
    "dropout_with_typed_keys": lambda: (
        dropout,
        weights(w=(3, 4), v=(4, 2)),
        {"x": X(3), "key": jax.random.split(jax.random.key(0), 3)},
    ),
    "dropout_with_raw_keys": lambda: (
        dropout,
        weights(w=(3, 4), v=(4, 2)),
        {"x": X(3), "key": jax.random.split(jax.random.PRNGKey(0), 3)},
    ),
}


@case
def closed_over_constants() -> Case:
    frozen = weights(w=(3, 3))["w"]
    return lambda p, x: jnp.tanh(x @ frozen * np.arange(3.0)) @ p["w"], weights(w=(3, 2)), X(3)
