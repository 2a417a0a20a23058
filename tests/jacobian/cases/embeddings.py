"""Weights that examples choose from by index."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.jacobian.cases.table import CASES, IDS, Case, X, case, weights

OUTSIDE = np.array([[2, 9, 2], [-9, 7, 4], [0, -1, -1]])


@case
def embedding() -> Case:  # fewer squared positions than entries: the closed form
    return lambda p, ids: jnp.tanh(p["e"][ids].sum(1)), weights(e=(5, 3)), IDS


@case
def embedding_of_a_small_table() -> Case:
    return lambda p, ids: jnp.tanh(p["e"][ids].sum(1)), weights(e=(4, 2)), IDS


def _embedding_outside(mode, **options) -> Case:
    apply = lambda p, ids: jnp.sin(p["e"].at[ids].get(mode=mode, **options)).sum(1)
    return apply, weights(e=(5, 3)), OUTSIDE


CASES |= {
    "embedding_outside_clip": lambda: _embedding_outside("clip"),
    "embedding_outside_fill": lambda: _embedding_outside("fill", fill_value=0.5),
    "embedding_outside_wrap": lambda: (
        lambda p, ids: jnp.sin(jnp.take(p["e"], ids, axis=0, mode="wrap")).sum(1),
        weights(e=(5, 3)),
        OUTSIDE,
    ),
    "embedding_outside_negative": lambda: _embedding_outside("clip", wrap_negative_indices=False),
    "embedding_promised_inside": lambda: (
        lambda p, ids: jnp.sin(p["e"].at[ids].get(mode="promise_in_bounds")).sum(1),
        weights(e=(5, 3)),
        IDS,
    ),
}


@case
def embedding_with_positions() -> Case:
    def apply(p, ids):
        return jnp.tanh((p["e"][ids] + p["positions"][: ids.shape[1]]) @ p["w"]).sum(1)

    return apply, weights(e=(5, 3), positions=(4, 3), w=(3, 2)), IDS


@case
def embedding_of_matrices() -> Case:
    return lambda p, ids: jnp.einsum("ntab->nba", jnp.sin(p["e"][ids])), weights(e=(5, 2, 3)), IDS[:, :2]


@case
def embedding_along_the_second_axis() -> Case:
    return lambda p, ids: jnp.sin(p["e"][:, ids]).sum((0, 2)).reshape(-1, 1), weights(e=(3, 5)), IDS


@case
def embedding_by_pairs_of_ids() -> Case:
    return lambda p, ids: jnp.sin(p["e"][ids[:, :2], ids[:, 1:]]), weights(e=(4, 4)), IDS


@case
def embedding_as_one_hot_product() -> Case:
    return lambda p, ids: jnp.tanh(jax.nn.one_hot(ids, 4) @ p["e"]).sum(1), weights(e=(4, 2)), IDS


@case
def embedding_of_one_id() -> Case:
    return lambda p, ids: jnp.sin(p["e"][ids]), weights(e=(4, 2)), IDS[:, 0]


@case
def take_along_axis() -> Case:
    apply = lambda p, ids: jnp.take_along_axis(jnp.sin(p["e"])[None], ids[:, None], axis=2).sum(1)
    return apply, weights(e=(2, 4)), IDS


@case
def slice_at_an_index_of_the_example() -> Case:
    def apply(p, x):
        take = lambda x, i: lax.dynamic_slice(p["w"], (i, 0), (2, 2)) @ x
        return jax.vmap(take)(x["x"], x["i"])

    return apply, weights(w=(5, 2)), {"x": X(2), "i": np.array([0, 2, 9])}


@case
def scatter_of_weights() -> Case:
    def apply(p, x):
        spread = lambda x, ids: jnp.zeros((4, 2)).at[ids].add(p["w"] * x[:, None]).at[ids[0]].set(p["w"][0])
        return jnp.sin(jax.vmap(spread)(x["x"], x["ids"]))

    return apply, weights(w=(3, 2)), {"x": X(3), "ids": IDS}


@case
def weights_for_segments() -> Case:
    apply = lambda p, x: jax.vmap(lambda x, i: jax.ops.segment_sum(x * p["w"], i, num_segments=4))(x["x"], x["ids"])
    return apply, weights(w=(3,)), {"x": X(3), "ids": IDS}
