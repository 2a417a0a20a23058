"""Control flow, calls, derivatives of their own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tests.jacobian.cases.table import Case, X, case, normal, weights


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
def linear_solve_of_the_example() -> Case:
    return lambda p, x: jax.vmap(lambda x: jnp.linalg.solve(p["a"], x))(x), weights(a=(3, 3)), X(3)


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
