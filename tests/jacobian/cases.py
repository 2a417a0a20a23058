"""Small functions of every kind that the estimators have to serve: name -> (apply_fn, params, inputs).

Each entry is a function that makes them, so that arrays are made in the precision of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Case = tuple[Callable[[Any, Any], jax.Array], Any, Any]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def weights(**shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    return {name: normal(100 + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


X = lambda *shape: normal(0, 3, *shape)  # three examples


# Dense layers


@case
def dense() -> Case:
    apply = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] + p["c"]
    return apply, weights(w=(3, 4), b=(4,), v=(4, 2), c=(2,)), X(3)


@case
def dense_of_many_features() -> Case:  # two positions: Gram matrices are cheaper
    return lambda p, x: jnp.sin(x @ p["w"]).mean(1), weights(w=(7, 6)), X(2, 7)


@case
def dense_of_many_positions() -> Case:  # the explicit weight gradient is cheaper
    return lambda p, x: jnp.sin(x @ p["w"]).mean(1), weights(w=(2, 2)), X(6, 2)


@case
def dense_weight_on_the_left() -> Case:
    return lambda p, x: jnp.sin(jnp.einsum("oc,ntc->not", p["w"], x)), weights(w=(2, 3)), X(2, 3)


@case
def batched_weights() -> Case:
    return lambda p, x: jnp.sin(jnp.einsum("nthd,hde->nhte", x, p["w"])).sum(2), weights(w=(2, 3, 2)), X(3, 2, 3)


@case
def batched_weights_on_the_left() -> Case:
    return lambda p, x: jnp.einsum("hed,nthd->nthe", p["w"], jnp.sin(x)), weights(w=(2, 2, 3)), X(2, 2, 3)


@case
def weight_contracted_over_two_axes() -> Case:
    return lambda p, x: jnp.einsum("nabc,bcd->nad", x**2, p["w"]), weights(w=(2, 3, 2)), X(2, 2, 3)


@case
def weight_contracted_whole() -> Case:
    return lambda p, x: jnp.einsum("nab,ab->n", x, p["w"]) ** 2, weights(w=(2, 3)), X(2, 3)


@case
def outer_product_with_a_weight() -> Case:
    return lambda p, x: jnp.sin(jnp.einsum("na,b->nab", x, p["w"])), weights(w=(3,)), X(2)


@case
def bilinear() -> Case:
    return lambda p, x: jnp.einsum("nc,cdk,nd->nk", x, p["w"], x), weights(w=(3, 3, 2)), X(3)


@case
def low_rank_update() -> Case:
    apply = lambda p, x: jnp.tanh(x @ (p["w"] + 0.5 * p["a"] @ p["b"]))
    return apply, weights(w=(3, 2), a=(3, 1), b=(1, 2)), X(3)


@case
def attention() -> Case:
    def apply(p, x):
        q, k, v = (jnp.einsum("ntc,chd->nthd", x, p[name]) for name in "qkv")
        scores = jnp.where(jnp.tril(jnp.ones((3, 3), bool)), jnp.einsum("nthd,nshd->nhts", q, k), -jnp.inf)
        mixed = jnp.einsum("nhts,nshd->nthd", jax.nn.softmax(scores), v)
        return jnp.einsum("nthd,hdo->nto", mixed, p["o"]).mean(1)

    return apply, weights(q=(3, 2, 2), k=(3, 2, 2), v=(3, 2, 2), o=(2, 2, 2)), X(3, 3)


@case
def cross_attention_to_learned_queries() -> Case:  # weights on both sides of products with the example
    def apply(p, x):
        mixed = jax.nn.softmax(jnp.einsum("qc,ntc->nqt", p["queries"], x)) @ x
        return mixed.reshape(len(x), -1) @ p["w"]

    return apply, weights(queries=(2, 3), w=(6, 2)), X(4, 3)


@case
def hypernetwork() -> Case:  # the example makes the kernel, a parameter is the signal
    def apply(p, x):
        kernels = jnp.einsum("nc,ckio->nkio", x, p["w"])
        convolve = lambda kernel: lax.conv_general_dilated(
            p["signal"][None], kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )[0]
        return jax.vmap(convolve)(kernels)

    return apply, weights(w=(2, 3, 1, 2), signal=(4, 1)), X(2)


@case
def experts_chosen_by_the_example() -> Case:
    def apply(p, x):
        chosen = jnp.argmax(x @ p["router"], axis=-1)
        return jnp.tanh(jnp.einsum("nc,nco->no", x, p["experts"][chosen]))

    return apply, weights(router=(3, 4), experts=(4, 3, 2)), X(3)


# Elementwise


@case
def elementwise_weights() -> Case:
    apply = lambda p, x: (p["a"] - x) * p["s"] / (1 + p["d"] ** 2) + jnp.abs(x) ** jnp.abs(p["e"]) + p["b"] / (1 + x**2)
    return apply, weights(a=(3,), s=(), d=(1,), e=(3,), b=(2, 3)), X(2, 3)


@case
def mask_made_from_a_weight_that_is_also_used() -> Case:
    apply = lambda p, x: x * p["w"] + x * jnp.where(p["w"] > 0, p["b"], p["c"])
    return apply, weights(w=(3,), b=(3,), c=()), X(3)


@case
def straight_through_sign() -> Case:
    def apply(p, x):
        binary = jnp.where(p["w"] > 0, 1.0, -1.0)
        return jnp.tanh(x @ (p["w"] + lax.stop_gradient(binary - p["w"])))

    return apply, weights(w=(3, 2)), X(3)


@case
def stopped_gradients() -> Case:
    apply = lambda p, x: jnp.sin(lax.stop_gradient(x @ p["w"])) * p["s"] + x @ lax.stop_gradient(p["v"])
    return apply, weights(w=(3, 2), s=(2,), v=(3, 2)), X(3)


@case
def gated_units() -> Case:
    apply = lambda p, x: jax.nn.silu(x @ p["g"]) * (x @ p["u"]) @ p["d"] + jax.nn.gelu(x @ p["d"].T @ p["u"].T)
    return apply, weights(g=(3, 4), u=(3, 4), d=(4, 3)), X(3)


@case
def integer_steps_in_between() -> Case:
    apply = lambda p, x: jnp.floor(x @ p["w"]) * p["s"] + jnp.round(x @ p["w"]).astype(int) % 3 + x @ p["w"]
    return apply, weights(w=(3, 2), s=()), X(3)


# Norms


def standardize(x, axes, eps=1e-3):
    return (x - x.mean(axes, keepdims=True)) * lax.rsqrt(x.var(axes, keepdims=True) + eps)


@case
def layer_norm() -> Case:
    apply = lambda p, x: standardize(x @ p["w"], -1) * p["scale"] + p["shift"]
    return apply, weights(w=(3, 4), scale=(4,), shift=(4,)), X(2, 3)


@case
def group_norm() -> Case:
    def apply(p, x):
        y = (x @ p["w"]).reshape(len(x), -1, 2, 2)
        return jnp.sum(standardize(y, (1, 3)).reshape(len(x), -1, 4) * p["scale"] + p["shift"], axis=1)

    return apply, weights(w=(3, 4), scale=(4,), shift=(4,)), X(3, 3)


@case
def rms_norm() -> Case:
    def apply(p, x):
        y = x @ p["w"]
        return jnp.tanh(y * lax.rsqrt(jnp.mean(y**2, -1, keepdims=True) + 1e-3) * (1 + p["scale"]))

    return apply, weights(w=(3, 4), scale=(4,)), X(3)


@case
def batch_norm_with_running_statistics() -> Case:  # the statistics are leaves that no gradient need reach
    def apply(p, x):
        y = (x @ p["w"] - p["mean"]) * lax.rsqrt(p["variance"] ** 2 + 1e-3) * p["scale"] + p["shift"]
        return jax.nn.relu(y).sum(1)

    return apply, weights(w=(3, 4), mean=(4,), variance=(4,), scale=(4,), shift=(4,)), X(2, 3)


@case
def weight_standardization() -> Case:
    def apply(p, x):
        kernel = standardize(p["w"], (0, 1)) * p["gain"]
        return convolve(x, kernel, (1,), "SAME", ("NWC", "WIO", "NWC")).sum(1)

    return apply, weights(w=(3, 2, 2), gain=(2,)), X(4, 2)


@case
def weight_normalization() -> Case:
    apply = lambda p, x: jnp.tanh(x @ (p["v"] / jnp.linalg.norm(p["v"], axis=0) * p["g"]))
    return apply, weights(v=(3, 2), g=(2,)), X(3)


@case
def spectral_normalization() -> Case:
    def apply(p, x):
        u = lax.stop_gradient(p["w"] @ (p["w"].T @ jnp.ones(3)))
        u = u / jnp.linalg.norm(u)
        sigma = jnp.linalg.norm(p["w"].T @ u)
        return jnp.tanh(x @ (p["w"] / sigma))

    return apply, weights(w=(3, 2)), X(3)


def convolve(x, kernel, strides, padding, numbers, **options):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers, **options)


# Tables


IDS = np.array([[2, 2, 0], [1, 1, 1], [3, 0, 2]])
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


# Weights in several places


@case
def tied_layers() -> Case:
    return lambda p, x: jnp.tanh(jnp.tanh(x @ p["w"]) @ p["w"]), weights(w=(3, 3)), X(3)


@case
def tied_transposed() -> Case:
    return lambda p, ids: jnp.tanh(p["e"][ids].mean(1)) @ p["e"].T, weights(e=(4, 2)), IDS


@case
def tied_by_slicing() -> Case:
    return lambda p, x: jnp.sin(x @ p["w"][:3]) @ p["w"][1:4, :1] + x @ p["w"][1:], weights(w=(4, 3)), X(3)


@case
def one_weight_cut_into_layers() -> Case:
    def apply(p, x):
        q, k, v = jnp.split(p["qkv"], 3, axis=1)
        return jnp.sin(x @ q) * (x @ k) + x @ v

    return apply, weights(qkv=(3, 6)), X(3)


@case
def one_flat_vector_of_weights() -> Case:
    def apply(p, x):
        w, b, v = p[:6].reshape(3, 2), p[6:8], p[8:].reshape(2, 2)
        return jnp.tanh(x @ w + b) @ v

    return apply, normal(3, 12), X(3)


@case
def concatenated_weights() -> Case:
    apply = lambda p, x: jnp.tanh(x @ jnp.concatenate([p["a"], p["b"]], axis=1)) @ jnp.stack([p["c"], p["d"]]).T
    return apply, weights(a=(3, 1), b=(3, 2), c=(3,), d=(3,)), X(3)


@case
def concatenated_with_itself() -> Case:
    return lambda p, x: jnp.sin(x @ jnp.concatenate([p["w"], p["w"]], axis=1)), weights(w=(3, 1)), X(3)


@case
def concatenated_with_constants() -> Case:
    def apply(p, x):
        one = jnp.concatenate([p["w"], jnp.ones(1)])
        two = jnp.concatenate([jnp.zeros(1), p["v"], jnp.full(1, 2.0)])
        three = jnp.concatenate([p["u"], jnp.arange(2.0)])
        return jnp.sin(x * one) + jnp.cos(x) * two + x**2 * three

    return apply, weights(w=(2,), v=(1,), u=(1,)), X(3)


@case
def concatenated_with_a_tied_weight() -> Case:
    return lambda p, x: jnp.tanh(x @ jnp.stack([p["a"], p["b"]])) @ p["b"], weights(a=(2,), b=(2,)), X(2)


@case
def weight_in_two_operations() -> Case:
    return lambda p, x: x @ p["w"] + jnp.sin(x) * p["w"][:, 0] * jnp.sum(p["w"] ** 2), weights(w=(3, 3)), X(3)


@case
def same_operand_twice() -> Case:
    apply = lambda p, x: jnp.where(x > 0, p["w"], p["w"]) + lax.select_n(x > 0.3, p["v"] + 0 * x, p["v"] * x)
    return apply, weights(w=(3,), v=(3,)), X(3)


@case
def rearranged_weights() -> Case:
    def apply(p, x):
        w = jnp.flip(p["w"].reshape(2, 3).T[None], axis=1)[0]
        return jnp.sin(x @ w) * lax.optimization_barrier(p["s"])[None] + jnp.squeeze(p["b"])

    return apply, weights(w=(6,), s=(2,), b=(1, 2, 1)), X(3)


@case
def repeated_padded_and_rolled_weights() -> Case:
    apply = lambda p, x: (
        x * jnp.tile(p["a"], 2) + jnp.sin(x) * jnp.repeat(p["a"], 2) + jnp.pad(p["b"], 1) * jnp.roll(p["c"], 1)
    )
    return apply, weights(a=(2,), b=(2,), c=(4,)), X(4)


@case
def weights_joined_without_the_example_first() -> Case:
    return (
        lambda p, x: jnp.sin(x @ (p["a"] @ p["b"])) @ jnp.linalg.inv(p["c"]),
        weights(a=(3, 2), b=(2, 2), c=(2, 2)),
        X(3),
    )


# Control flow and calls


@case
def recurrent_cell_in_scan() -> Case:
    def apply(p, x):
        def cell(h, x):
            h = jnp.tanh(h @ p["w"] + x @ p["u"] + p["b"])
            return h, h * p["g"]

        h, seen = lax.scan(cell, jnp.broadcast_to(p["h"], (len(x), 2)), jnp.swapaxes(x, 0, 1))
        return h + seen.sum(0)

    return apply, weights(w=(2, 2), u=(3, 2), b=(2,), g=(2,), h=(2,)), X(4, 3)


@case
def stacked_layers_in_scan() -> Case:
    def apply(p, x):
        layer = lambda h, p: (h + jnp.tanh(h @ p["w"] + p["b"]), None)
        return lax.scan(layer, x, p["layers"])[0] @ p["out"]

    return apply, {"layers": weights(w=(4, 3, 3), b=(4, 3)), "out": normal(9, 3, 2)}, X(3)


@case
def scan_of_remat_layers_with_a_tied_weight() -> Case:
    def apply(p, x):
        layer = jax.checkpoint(lambda h, w: (jnp.sin(h @ w @ p["tied"]), h.sum(-1)))
        h, sums = lax.scan(layer, x @ p["tied"], p["w"], reverse=True, unroll=2)
        return h + sums.T[:, :2]

    return apply, weights(w=(3, 2, 2), tied=(2, 2)), X(2)


@case
def nested_scans() -> Case:
    def apply(p, x):
        inner = lambda h, w: (jnp.tanh(h * w), None)
        outer = lambda h, w: (lax.scan(inner, h, w)[0] @ p["v"], None)
        return lax.scan(outer, x, p["w"])[0]

    return apply, weights(w=(2, 3, 2), v=(2, 2)), X(2)


@case
def associative_scan() -> Case:
    def apply(p, x):
        decay = jax.nn.sigmoid(x @ p["a"])
        join = lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1])
        return lax.associative_scan(join, (decay, x @ p["b"]), axis=1)[1][:, -1]

    return apply, weights(a=(2, 2), b=(2, 2)), X(4, 2)


@case
def map_over_positions() -> Case:
    apply = lambda p, x: lax.map(lambda x: jnp.tanh(x @ p["w"]), jnp.swapaxes(x, 0, 1)).sum(0)
    return apply, weights(w=(3, 2)), X(2, 3)


@case
def cond_on_the_example() -> Case:
    def apply(p, x):
        one = lambda x: lax.cond(x[0] > 0, lambda x: jnp.tanh(x @ p["a"]), lambda x: x @ p["b"] * p["s"], x)
        return jax.vmap(one)(x)

    return apply, weights(a=(3, 2), b=(3, 2), s=()), X(3)


@case
def cond_on_a_weight() -> Case:
    def apply(p, x):
        w = lax.cond(p["s"] > 0, lambda: p["a"] ** 2, lambda: p["b"] * p["s"])
        return lax.switch(1, [lambda x: x[:, :2], lambda x: jnp.tanh(x @ w), lambda x: x @ w], x) * p["s"]

    return apply, weights(a=(3, 2), b=(3, 2), s=()), X(3)


@case
def fori_loop() -> Case:
    apply = lambda p, x: lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p["w"][i % 2] + x), x)
    return apply, weights(w=(2, 3, 3)), X(3)


@case
def while_loop_that_gradients_need_not_enter() -> Case:
    def apply(p, x):
        def one(x):
            halved = lax.while_loop(lambda s: jnp.any(jnp.abs(s) > 0.5), lambda s: s / 2, x)
            steps, _ = lax.while_loop(lambda s: jnp.any(s[1] < 3), lambda s: (s[0] + 1, s[1] + 1), (0, x))
            return jnp.sin(x @ p["w"]) * lax.stop_gradient(halved)[:2] + steps

        return jax.vmap(one)(x)

    return apply, weights(w=(3, 2)), X(3)


@case
def remat() -> Case:
    block = jax.checkpoint(lambda p, x: jnp.tanh(jnp.sin(x @ p["w"]) @ p["v"]))
    saved = jax.checkpoint(lambda p, x: jnp.sin(x @ p["v"]), policy=jax.checkpoint_policies.dots_saveable)
    return lambda p, x: block(p, x) * saved(p, block(p, x)[:, :3]), weights(w=(3, 3), v=(3, 3)), X(3)


@case
def nested_jit() -> Case:
    constant = jnp.arange(3.0)
    inner = jax.jit(lambda p, x: jnp.sin(x @ p["w"] + constant))
    outer = jax.jit(lambda p, x: inner(p, inner(p, x)) @ p["v"])
    return outer, weights(w=(3, 3), v=(3, 2)), X(3)


@case
def custom_jvp_with_a_weight_inside() -> Case:
    @jax.custom_jvp
    def scaled(w, x):
        return jnp.sin(w * x)

    scaled.defjvp(lambda primals, tangents: (scaled(*primals), 2 * tangents[0] * primals[1] + tangents[1] * primals[0]))
    return lambda p, x: scaled(p["w"], x) + jax.nn.relu(p["v"] * x), weights(w=(3,), v=(3,)), X(3)


@case
def custom_vjp_with_weights_inside() -> Case:
    @jax.custom_vjp
    def layer(w, x):
        return jnp.sin(x @ w)

    def backward(kept, bar):  # not the true derivative; the given one counts
        w, x = kept
        return 1.5 * x.T @ bar, 0.5 * bar @ w.T

    layer.defvjp(lambda w, x: (layer(w, x), (w, x)), backward)
    return lambda p, x: layer(p["w"], layer(p["v"], x)) ** 2, weights(w=(3, 2), v=(3, 3)), X(3)


@case
def linear_solve_with_a_weight() -> Case:
    apply = lambda p, x: jax.vmap(lambda x: jnp.linalg.solve(p["a"] @ p["a"].T + jnp.diag(x**2) + jnp.eye(3), p["b"]))(
        x
    )
    return apply, weights(a=(3, 3), b=(3,)), X(3)


@case
def matrix_functions_of_weights() -> Case:
    apply = lambda p, x: (
        x @ jnp.linalg.cholesky(p["a"] @ p["a"].T + jnp.eye(3)) @ jnp.linalg.inv(p["a"] @ p["a"] + 3 * jnp.eye(3))
    )
    return apply, weights(a=(3, 3)), X(3)


@case
def gradient_inside_the_function() -> Case:  # a force from an energy
    energy = lambda p, x: jnp.sum(jnp.tanh(x @ p["w"]) @ p["v"])
    return lambda p, x: -jax.grad(energy, argnums=1)(p, x), weights(w=(3, 2), v=(2,)), X(3)


@case
def vmap_and_jvp_inside_the_function() -> Case:
    def apply(p, x):
        per_head = jax.vmap(lambda w: jax.jvp(lambda x: jnp.sin(x @ w), (x,), (jnp.cos(x),))[1])
        return per_head(p["w"]).sum(0) * p["s"]

    return apply, weights(w=(2, 3, 2), s=(2,)), X(3)


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


# Picking, ordering, summing


@case
def max_pool() -> Case:
    def apply(p, x):
        y = x[..., None] * p["w"]
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 1), (1, 1, 1), "SAME").sum(1)

    return apply, weights(w=(2,)), X(4)


@case
def average_pool() -> Case:
    pool = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 2, 1), "VALID")
    return lambda p, x: pool(jnp.tanh(x @ p["w"])).sum(2), weights(w=(2, 3)), X(4, 2)


@case
def sort() -> Case:
    return lambda p, x: jnp.sort(x * p["w"], axis=1) * jnp.sort(p["v"]), weights(w=(4,), v=(4,)), X(4)


@case
def sort_of_several() -> Case:
    def apply(p, x):
        keys, values = lax.sort((x, x * p["w"]), num_keys=1)
        return keys * p["v"] + values[:, ::-1]

    return apply, weights(w=(4,), v=(4,)), X(4)


@case
def top_k() -> Case:
    return lambda p, x: lax.top_k(jnp.sin(x @ p["w"]), 2)[0] * p["s"], weights(w=(3, 4), s=(2,)), X(3)


@case
def gather_at_the_largest() -> Case:
    def apply(p, x):
        y = x * p["w"]
        return jnp.take_along_axis(y**2, jnp.argmax(y, axis=1, keepdims=True), axis=1)

    return apply, weights(w=(4,)), X(4)


@case
def where() -> Case:
    return lambda p, x: jnp.where(x > 0, p["a"], p["b"] * x) * p["s"], weights(a=(3,), b=(3,), s=()), X(3)


@case
def ties() -> Case:
    apply = lambda p, x: jax.nn.relu(x * p["w"]) + jnp.maximum(x * p["v"], 0) + jnp.abs(x * p["v"])
    return apply, {"w": jnp.zeros(3), "v": jnp.zeros(3)}, X(3)


@case
def clipped() -> Case:
    return (
        lambda p, x: jnp.clip(x @ p["w"], p["low"], p["low"] + 1) + jnp.sign(x @ p["w"]),
        weights(w=(3, 2), low=()),
        X(3),
    )


@case
def cumulative() -> Case:
    def apply(p, x):
        y = x * p["w"]
        return jnp.cumsum(y, 1) + jnp.cumprod(y, 1) + lax.cummax(y, 1) + lax.cumlogsumexp(y, 1) * p["s"]

    return apply, weights(w=(3,), s=(3,)), X(3)


@case
def reductions() -> Case:
    def apply(p, x):
        y = x @ p["w"]
        return jnp.stack([y.max(1), y.min(1), y.prod(1), jax.nn.logsumexp(y, 1), jnp.linalg.norm(y, axis=1)], 1)

    return apply, weights(w=(3, 4)), X(3)


@case
def resized() -> Case:
    apply = lambda p, x: jax.image.resize(x[..., None] * p["w"], (len(x), 6, 2), "linear").sum(2) ** 2
    return apply, weights(w=(2,)), X(3)


@case
def fourier() -> Case:
    def apply(p, x):
        spectrum = jnp.fft.rfft(x) * p["filter"] * lax.complex(p["real"], p["imaginary"]) + p["shift"]
        return jnp.fft.irfft(spectrum * jnp.fft.rfft(p["kernel"]), 4)

    return apply, weights(filter=(3,), real=(3,), imaginary=(3,), shift=(3,), kernel=(4,)), X(4)


@case
def complex_magnitude() -> Case:
    apply = lambda p, x: jnp.abs(jnp.exp(1j * p["phase"]) * x + 1j * p["b"]) + (x * p["w"] * (2 + 1j)).imag
    return apply, weights(phase=(3,), b=(3,), w=(3,)), X(3)


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
