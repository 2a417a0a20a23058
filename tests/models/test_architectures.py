"""Sizes against the literature, and the two libraries against each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import layers, make_model

EIGHT_LAYERS = {
    "widths": (32, 64, 64, 64, 96, 96, 128, 128),
    "strides": (1, 1, 2, 1, 2, 1, 2, 1),
    "readout": "mean",
    "dense_width": None,
}


def shapes(model, image_shape):
    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), images)


def num_parameters(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("stem", "num_classes", "size", "count"),
    [("3x3", 10, 32, 11_173_962), ("imagenet", 1000, 224, 11_689_512)],
)
def test_resnet18_has_the_parameters_of_the_literature(stem, num_classes, size, count):
    model = make_model("resnet18", num_classes=num_classes, stem=stem, norm="batch")
    params, state = shapes(model, (size, size, 3))
    assert num_parameters(params) == count
    assert num_parameters(state) == 2 * 4800  # a mean and a variance for each normalised channel
    assert len(params["blocks"]) == 8


@pytest.mark.parametrize("name", ["cnn", "haiku_cnn"])
def test_cnn_of_three_and_of_eight_layers(name):
    three, _ = shapes(make_model(name, num_classes=10), (8, 8, 1))
    kernels = [leaf for leaf in jax.tree.leaves(three) if leaf.ndim == 4]
    assert len(kernels) == 3
    assert num_parameters(three) == 89_930
    eight, _ = shapes(make_model(name, num_classes=10, **EIGHT_LAYERS), (32, 32, 3))
    kernels = [leaf for leaf in jax.tree.leaves(eight) if leaf.ndim == 4]
    assert len(kernels) == 8
    assert num_parameters(eight) == 491_274


def to_haiku(tree):
    """Parameters or state of ``cnn`` in the tree of ``haiku_cnn``."""
    modules = {name: leaves for name, leaves in tree.items() if name != "convs"}
    for layer, parts in tree.get("convs", {}).items():
        modules |= {f"{part}_{layer}": leaves for part, leaves in parts.items()}
    linear = {"kernel": "w", "bias": "b"}
    return {
        name: leaves if name.startswith("norm") else {linear[leaf]: leaves[leaf] for leaf in leaves}
        for name, leaves in modules.items()
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"norm": "batch", "dropout_rate": 0.5},
        {"norm": "group", "pooling": "max", "readout": "mean", "kernel_size": 2},
        {"pooling": "average", "dense_width": None},
        {"widths": (), "strides": ()},
    ],
    ids=["batch", "group", "none", "dense"],
)
@pytest.mark.parametrize("train", [False, True])
def test_flax_and_haiku_compute_the_same(arguments, train):
    arguments = {"widths": (4, 32), "strides": (1, 2), "dense_width": 8} | arguments
    flax, haiku = (make_model(name, num_classes=3, **arguments) for name in ("cnn", "haiku_cnn"))
    images = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7, 5, 2)), jnp.float32)
    rng = np.random.default_rng(1)
    params, state = jax.eval_shape(flax.init, jax.random.key(0), images)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.normal(size=leaf.shape), leaf.dtype), params)
    state = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(1, 2, leaf.shape), leaf.dtype), state)
    mode = {"train": train, "key": jax.random.key(2)}
    apply_flax, apply_haiku = (jax.jit(functools.partial(model.apply, **mode)) for model in (flax, haiku))
    logits, new_state = apply_flax(params, state, images)
    others, other_state = apply_haiku(to_haiku(params), to_haiku(state), images)
    np.testing.assert_allclose(others, logits, rtol=1e-5, atol=1e-5)
    expected = to_haiku(new_state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), other_state, expected)


@pytest.mark.parametrize(("width", "groups"), [(1, 1), (4, 1), (17, 1), (32, 2), (40, 2), (48, 3), (64, 4), (512, 32)])
def test_num_groups(width, groups):
    assert layers.num_groups(width) == groups


def test_group_norm_has_moments_zero_and_one():
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, size=(2, 4, 4, 32)), jnp.float32)
    y = layers.group_norm(x, jnp.ones(32), jnp.zeros(32)).reshape(2, 16, 2, 16)
    np.testing.assert_allclose(y.mean((1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(y.var((1, 3)), 1, rtol=1e-4)


def test_batch_norm_moments_and_running_statistics():
    x = jnp.asarray(np.random.default_rng(0).normal(3, 2, size=(8, 4, 4, 2)), jnp.float32)
    one, zero = jnp.ones(2), jnp.zeros(2)
    y, mean, variance = layers.batch_norm(x, one, zero, zero, one, train=True, axis_name=None)
    np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(y.var((0, 1, 2)), 1, rtol=1e-4)
    np.testing.assert_allclose(mean, 0.1 * x.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * x.var((0, 1, 2)), rtol=1e-5)
    y, *unchanged = layers.batch_norm(x, 2 * one, one, 3 * one, 4 * one, train=False, axis_name=None)
    np.testing.assert_allclose(y, x - 3 + 1, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(jnp.stack(unchanged), jnp.stack([3 * one, 4 * one]))


def test_pool_ignores_the_padding():
    x = jnp.array([[-1.0, -2.0, -5.0]]).reshape(1, 1, 3, 1)
    np.testing.assert_allclose(layers.pool(x, "max", 2).ravel(), [-1, -5])
    np.testing.assert_allclose(layers.pool(x, "average", 2).ravel(), [-1.5, -5])


def test_dropout_masks_differ_by_example_and_keep_the_mean():
    keys = jax.random.split(jax.random.key(0), 3)
    y = layers.dropout(jnp.ones((3, 2000)), 0.25, keys)
    values = jnp.unique(y)
    np.testing.assert_allclose(values, [0, 4 / 3], rtol=1e-6)
    assert bool((y[0] != y[1]).any())
    np.testing.assert_allclose(y.mean(1), 1, atol=0.05)
