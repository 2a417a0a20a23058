"""Random small networks composed of pieces, with random chunk sizes, against the dense Jacobian.

A network is a chain of pieces that take and give `[n, T, C]`, then a mean over positions and a readout. Each piece has
parameters of its own, or uses those of an earlier piece of its kind again.
"""

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from tests.jacobian.cases import normal, standardize
from tests.jacobian.configurations import estimator
from tests.jacobian.oracle import compare

T, C = 3, 2  # positions and features


def convolution(p, x, stride=1, **options):
    numbers = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(x, p["kernel"], (stride,), "SAME", dimension_numbers=numbers, **options)


def attention(p, x):
    q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    return jax.nn.softmax(jnp.einsum("ntc,nsc->nts", q, k)) @ v


def recurrent(p, x):
    def cell(h, x):
        h = jnp.tanh(h @ p["w"] + x)
        return h, h

    return jnp.swapaxes(lax.scan(cell, jnp.zeros_like(x[:, 0]), jnp.swapaxes(x, 0, 1))[1], 0, 1)


def stacked(p, x):
    return lax.scan(lambda h, w: (h + jnp.sin(h @ w), None), x, p["layers"])[0]


def gated(p, x):
    one = lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ p["w"], lambda x: x * p["s"], x)
    return jax.vmap(one)(x)


def custom(p, x):
    @jax.custom_vjp
    def scaled(s, x):
        return s * x

    scaled.defvjp(lambda s, x: (s * x, (s, x)), lambda kept, bar: (jnp.sum(bar * kept[1], (0, 1)), bar * kept[0]))
    return scaled(p["s"], x)


# name -> (function of its parameters and [n, T, C], shapes of its parameters)
PIECES: dict[str, tuple[Callable, dict]] = {
    "dense": (lambda p, x: jnp.tanh(x @ p["w"] + p["b"]), {"w": (C, C), "b": (C,)}),
    "tied": (lambda p, x: jnp.sin(x @ p["w"]) @ p["w"].T, {"w": (C, 3)}),
    "convolution": (convolution, {"kernel": (3, C, C)}),
    "strided": (lambda p, x: jnp.repeat(convolution(p, x, stride=2), 2, 1)[:, :T], {"kernel": (2, C, C)}),
    "depthwise": (lambda p, x: convolution(p, x, feature_group_count=C), {"kernel": (3, 1, C)}),
    "dilated": (lambda p, x: convolution(p, x, rhs_dilation=(2,)), {"kernel": (2, C, C)}),
    "layer norm": (lambda p, x: standardize(x, -1, 0.1) * p["s"] + p["b"], {"s": (C,), "b": (C,)}),
    "standardized": (lambda p, x: x @ standardize(p["w"], 0, 0.1), {"w": (C, C)}),
    "attention": (attention, {"qkv": (C, 3 * C)}),
    "recurrent": (recurrent, {"w": (C, C)}),
    "stacked": (stacked, {"layers": (2, C, C)}),
    "gated": (gated, {"w": (C, C), "s": ()}),
    "remat": (jax.checkpoint(lambda p, x: jnp.sin(x @ p["w"])), {"w": (C, C)}),
    "jit": (jax.jit(lambda p, x: jnp.cos(x * p["s"] + p["b"])), {"s": (C,), "b": (T, C)}),
    "custom": (custom, {"s": (C,)}),
    "sliced": (lambda p, x: jnp.sin(x @ p["w"][1:]) + x * p["w"][0], {"w": (C + 1, C)}),
    "concatenated": (
        lambda p, x: x @ jnp.concatenate([p["a"], p["b"], jnp.ones((C, 1))], axis=1)[:, :C],
        {"a": (C, 1), "b": (C, 1)},
    ),
    "table": (lambda p, x: x + p["e"][(x[..., 0] > 0).astype(int)], {"e": (3, C)}),
    "sort": (lambda p, x: jnp.sort(x * p["s"], axis=1), {"s": (C,)}),
    "max-pool": (lambda p, x: lax.cummax(x * p["s"], axis=1), {"s": (C,)}),
    "spectrum": (lambda p, x: jnp.fft.irfft(jnp.fft.rfft(x, axis=1) * p["s"], T, axis=1), {"s": (T // 2 + 1, C)}),
    "masked": (lambda p, x: jnp.where(p["s"] > 0, x, -x) * p["s"] + x, {"s": (C,)}),
}

piece = st.fixed_dictionaries(
    {"name": st.sampled_from(sorted(PIECES)), "residual": st.booleans(), "reuse": st.booleans()}
)
network = st.lists(piece, min_size=1, max_size=4)
chunks = st.fixed_dictionaries({}, optional={"example_chunk": st.integers(1, 4), "output_chunk": st.integers(1, 3)})


def build(pieces, num_outputs):
    """The network's function and parameters."""
    params: list[dict] = []
    used: list[int] = []
    for i, choice in enumerate(pieces):
        before = [place for place, other in zip(used, pieces, strict=False) if other["name"] == choice["name"]]
        if choice["reuse"] and before:
            used.append(before[0])
        else:
            shapes = PIECES[choice["name"]][1]
            params.append({name: normal(10 * i + k, *shape) for k, (name, shape) in enumerate(shapes.items())})
            used.append(len(params) - 1)
    params.append({"readout": normal(99, C, num_outputs)})

    def apply(params, x):
        for choice, place in zip(pieces, used, strict=True):
            y = PIECES[choice["name"]][0](params[place], x)
            x = x + y if choice["residual"] else y
        return x.mean(1) @ params[-1]["readout"]

    return apply, params


def check(pieces, chunk_options, num_outputs):
    apply, params = build(pieces, num_outputs)
    estimators = {"layerwise": estimator("layerwise", **chunk_options)}
    compare(estimators, apply, params, normal(0, 3, T, C), "params", rtol=1e-7)


@settings(max_examples=8, derandomize=True, database=None, deadline=None)
@given(network, chunks, st.integers(1, 3))
def test_random_networks(pieces, chunk_options, num_outputs):
    check(pieces, chunk_options, num_outputs)


@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("JACREG_RANDOM_NETWORKS", "200")),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(piece, min_size=2, max_size=6), chunks, st.integers(1, 4))
def test_many_random_networks(pieces, chunk_options, num_outputs):
    check(pieces, chunk_options, num_outputs)


@pytest.mark.parametrize("name", PIECES)
def test_each_piece_alone_and_again(name):
    once = {"name": name, "residual": False, "reuse": False}
    check([once, once | {"reuse": True, "residual": True}], {}, 2)
