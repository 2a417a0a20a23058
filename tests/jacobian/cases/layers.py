"""Dense layers, elementwise weights and norms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tests.jacobian.cases.table import Case, X, case, convolve, standardize, weights

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
