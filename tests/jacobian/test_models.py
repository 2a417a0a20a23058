"""Networks of four libraries and of our own table against the dense Jacobian."""

from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from models import MODELS, make_model
from tests.jacobian.cases import normal
from tests.jacobian.configurations import all_estimators, estimator, num_outputs
from tests.jacobian.oracle import FULL_OPTIMISATION, compare

# arguments that make each of our models tiny
ARGUMENTS: dict[str, dict] = {
    "cnn": {"widths": (2, 2), "strides": (1, 2)},
    "resnet18": {"width": 2},
    "haiku_cnn": {"widths": (2, 2), "strides": (1, 2)},
}


def images(n=2):
    return normal(0, n, 6, 6, 2)


def linen_cnn() -> Any:
    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.GroupNorm(num_groups=2)(linen.Conv(4, (3, 3), strides=2)(x)))
            x = linen.avg_pool(linen.Conv(4, (3, 3), feature_group_count=2, use_bias=False)(x), (2, 2))
            return linen.Dense(3)(linen.LayerNorm()(x.reshape(len(x), -1)))

    network = Network()
    return lambda p, x: network.apply(p, x), network.init(jax.random.key(0), images()), images()


def linen_transformer_with_tied_embedding():
    class Network(linen.Module):
        @linen.compact
        def __call__(self, ids):
            embedding = linen.Embed(4, 4)
            x = embedding(ids)
            x = x + linen.MultiHeadDotProductAttention(num_heads=2)(linen.LayerNorm()(x))
            return embedding.attend(x.mean(1))

    network, ids = Network(), np.array([[1, 1, 3], [0, 2, 1]])
    return lambda p, x: network.apply(p, x), network.init(jax.random.key(0), ids), ids


def linen_recurrent():
    network: Any = linen.RNN(linen.GRUCell(3, dtype=float, param_dtype=float))
    inputs = normal(0, 2, 4, 2)
    return lambda p, x: network.apply(p, x)[:, -1], network.init(jax.random.key(0), inputs), inputs


def nnx_cnn():
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(2, 3, (3, 3), padding="VALID", rngs=rngs)
            self.norm = nnx.BatchNorm(3, use_running_average=True, rngs=rngs)
            self.head = nnx.Linear(3, 2, rngs=rngs)

        def __call__(self, x):
            return self.head(jax.nn.gelu(self.norm(self.conv(x))).mean((1, 2)))

    parts: Any = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)
    graph, params, rest = parts
    return lambda p, x: nnx.merge(graph, p, rest)(x), params, images()


def haiku_cnn():
    def forward(x):
        x = jax.nn.relu(hk.Conv2D(3, 3, stride=2)(x))
        x = hk.LayerNorm(-1, create_scale=True, create_offset=True)(hk.Conv2DTranspose(2, 2)(x))
        return hk.nets.MLP((4, 2))(x.reshape(len(x), -1))

    network: Any = hk.without_apply_rng(hk.transform(forward))
    return network.apply, network.init(jax.random.key(0), images()), images()


def equinox_cnn():
    keys = jax.random.split(jax.random.key(0), 3)
    network = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(2, 3, 3, key=keys[0]),
            eqx.nn.Lambda(jnp.tanh),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.LayerNorm(12),
            eqx.nn.Linear(12, 2, key=keys[1]),
        ]
    )
    params, static = eqx.partition(network, eqx.is_array)
    return lambda p, x: jax.vmap(eqx.combine(p, static))(jnp.moveaxis(x, 3, 1)), params, images()


def equinox_shared_recurrent():
    cell = eqx.nn.LSTMCell(2, 3, key=jax.random.key(0))
    params, static = eqx.partition(cell, eqx.is_array)

    def apply(p, x):
        step = lambda state, x: (eqx.combine(p, static)(x, state), None)
        return jax.vmap(lambda x: jax.lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), x)[0][0])(x)

    return apply, params, normal(0, 2, 3, 2)


LIBRARIES = [
    linen_cnn,
    linen_transformer_with_tied_embedding,
    linen_recurrent,
    nnx_cnn,
    haiku_cnn,
    equinox_cnn,
    equinox_shared_recurrent,
]


def double(tree):
    is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.map(lambda leaf: leaf.astype(float) if is_float(leaf) else leaf, tree)


@pytest.mark.parametrize("make", LIBRARIES, ids=lambda make: make.__name__)
def test_networks_of_each_library(make):
    apply_fn, params, inputs = make()
    compare({"layerwise": estimator("layerwise")}, apply_fn, double(params), inputs, "params", rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("make", LIBRARIES, ids=lambda make: make.__name__)
def test_networks_of_each_library_with_all_estimators(make):
    apply_fn, params, inputs = make()
    params = double(params)
    for wrt in ("params", "inputs") if jnp.issubdtype(inputs.dtype, jnp.floating) else ("params",):
        estimators = all_estimators(num_outputs(apply_fn, params, inputs), wrt)
        compare(estimators, apply_fn, params, inputs, wrt, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "gradients_of"),
    [
        *((name, ("mixed",) if name != "resnet18" else ()) for name in MODELS),
        pytest.param("resnet18", ("mixed",), marks=pytest.mark.slow),
    ],
)
def test_models_of_the_table(name, gradients_of):
    model = make_model(name, num_classes=2, **ARGUMENTS.get(name, {}))
    inputs = normal(1, 2, 8, 8, 1)
    params, state = jax.jit(model.init)(jax.random.key(0), inputs)
    state = jax.tree.map(lambda leaf: leaf + 0.3, state)  # running statistics that are not the initial ones
    estimators = {"layerwise": estimator("layerwise")}
    apply = lambda p, x: model.apply(p, state, x)[0]
    options = {"gradients_of": gradients_of, "rtol": 1e-8, "compiler_options": FULL_OPTIMISATION}
    compare(estimators, apply, params, inputs, "params", **options)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet18"])
def test_dropout_with_the_key_of_each_example(name):
    """A model that trains with dropout: masks from one key per example, the same in the whole batch and in chunks."""
    model = make_model(name, num_classes=2, **ARGUMENTS.get(name, {}) | {"dropout_rate": 0.5})
    inputs = {"image": normal(1, 2, 8, 8, 1), "index": jnp.arange(2)}
    params, state = jax.jit(model.init)(jax.random.key(0), inputs["image"])

    def apply(p, x):
        one = lambda image, index: model.apply(
            p, state, image[None], train=True, key=jax.random.key(3), first_example=index
        )[0][0]
        return jax.vmap(one)(x["image"], x["index"])

    estimators = {"in chunks": estimator("layerwise", example_chunk=1)}
    compare(estimators, apply, params, inputs, "params", rtol=1e-8)
