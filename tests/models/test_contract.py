"""What every model promises, for every model of the table and every variant that changes a promise."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import MODELS, example_keys, make_model

NUM_CLASSES = 3
CNN: dict[str, Any] = {"widths": (4, 6), "strides": (1, 2), "dense_width": 8}
SMALL: dict[str, dict[str, Any]] = {"cnn": CNN, "haiku_cnn": CNN, "resnet18": {"width": 4}}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "cnn": [{}, {"norm": "group", "pooling": "max", "readout": "mean"}, {"norm": "batch"}, {"dropout_rate": 0.5}],
    "resnet18": [{}, {"norm": "batch", "stem": "imagenet"}],
    "haiku_cnn": [{}, {"norm": "group", "pooling": "average"}, {"norm": "batch", "dropout_rate": 0.5}],
}
CASES = [(name, variant) for name in MODELS for variant in VARIANTS[name]]
IDS = ["-".join([name, *map(str, variant.values())]) for name, variant in CASES]
each_case = pytest.mark.parametrize(("name", "variant"), CASES, ids=IDS)


def images(seed=0, n=4, size=8, channels=2, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, size, size, channels)).astype(dtype))


def small(name, **variant):
    return make_model(name, num_classes=NUM_CLASSES, **(SMALL[name] | variant))


class Case:
    """A small model with parameters off their special initial values, and its compiled application."""

    def __init__(self, name, variant):
        self.model = small(name, **dict(variant))
        self.inputs = images()
        # Keys of kind "rbg" compile several times faster.
        self.initial = jax.jit(self.model.init)(jax.random.key(0, impl="rbg"), self.inputs)
        params, state = self.initial
        self.params = shaken(params, 1)
        self.state = jax.tree.map(jnp.abs, shaken(state, 2))
        self.apply = jax.jit(self.model.apply, static_argnames=("train", "axis_name"))

    def __call__(self, inputs, **mode):
        return self.apply(self.params, self.state, inputs, **mode)


def shaken(tree, seed):
    """The tree plus a tenth of normal noise, by numpy: jax would compile a draw for each shape."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype), tree)


@functools.cache
def _case(name, variant):
    return Case(name, variant)


@pytest.fixture
def case(name, variant):
    return _case(name, tuple(variant.items()))


def assert_close(actual, expected, tolerance=1e-4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def test_every_model_has_variants():
    assert set(VARIANTS) == set(SMALL) == set(MODELS)


@each_case
def test_shapes_and_dtypes(case):
    logits, state = case(case.inputs)
    assert logits.shape == (4, NUM_CLASSES)
    leaves = jax.tree.leaves((logits, case.params, state))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    assert jax.tree.leaves(case.params)
    assert bool(jax.tree.leaves(state)) == case.model.joint_in_training


@each_case
def test_trees_are_plain_dicts_with_string_keys(case):
    def check(tree):
        if isinstance(tree, dict):
            assert all(isinstance(key, str) for key in tree)
            for branch in tree.values():
                check(branch)
        else:
            assert isinstance(tree, jax.Array)

    check(case.params)
    check(case.state)


@each_case
def test_evaluation_leaves_state_and_repeats(case):
    before = jax.tree.map(np.array, (case.params, case.state))
    logits, state = case(case.inputs)
    again, _ = case(case.inputs)
    np.testing.assert_array_equal(logits, again)
    assert_close(state, before[1], 0)
    assert_close((case.params, case.state), before, 0)


@each_case
def test_training_is_pure(case):
    mode = {"train": True, "key": jax.random.key(2)}
    before = jax.tree.map(np.array, (case.params, case.state))
    first, second = case(case.inputs, **mode), case(case.inputs, **mode)
    assert_close(first, second, 0)
    assert_close((case.params, case.state), before, 0)
    changed = any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), first[1], case.state)))
    assert changed == case.model.joint_in_training


@each_case
def test_batch_equals_examples_one_by_one(case):
    logits, _ = case(case.inputs)
    single = jax.jit(lambda image: case(image[None])[0][0])
    assert_close(jnp.stack([single(image) for image in case.inputs]), logits)
    assert_close(jax.vmap(single)(case.inputs), logits)


@each_case
def test_joint_in_training_says_whether_examples_are_coupled(case):
    others_changed = case.inputs.at[1:].set(images(seed=5)[1:])
    mode = {"train": True, "key": jax.random.key(2)}
    here, there = case(case.inputs, **mode)[0][0], case(others_changed, **mode)[0][0]
    assert bool(jnp.abs(here - there).max() > 1e-3) == case.model.joint_in_training
    alone, among_others = case(case.inputs)[0][0], case(others_changed)[0][0]
    assert_close(alone, among_others)


@each_case
def test_stochastic_in_training_says_whether_the_key_matters(case):
    outputs = [case(case.inputs, train=True, key=jax.random.key(seed))[0] for seed in (2, 3)]
    assert bool((outputs[0] != outputs[1]).any()) == case.model.stochastic_in_training
    if case.model.stochastic_in_training:
        with pytest.raises(ValueError, match="key"):
            case(case.inputs, train=True)
        with pytest.raises(ValueError, match="threefry"):
            case(case.inputs, train=True, key=jax.random.key(0, impl="rbg"))
        case(case.inputs, train=True, key=jax.random.PRNGKey(0))
    else:
        case(case.inputs, train=True)


@each_case
def test_a_part_of_the_batch_gives_what_the_whole_gives(case):
    """As on several devices: statistics over the named axis, masks by the index in the whole batch."""
    key = jax.random.key(2)
    whole, state = case(case.inputs, train=True, key=key)

    def part(inputs, first_example):
        mode = {"train": True, "key": key, "first_example": first_example, "axis_name": "device"}
        return case.model.apply(case.params, case.state, inputs, **mode)

    split = jax.jit(jax.vmap(part, axis_name="device"))
    logits, states = split(case.inputs.reshape(2, 2, *case.inputs.shape[1:]), jnp.array([0, 2]))
    assert_close(logits.reshape(whole.shape), whole)
    for i in range(2):
        assert_close(jax.tree.map(lambda leaf: leaf[i], states), state)  # noqa: B023


@each_case
def test_initial_values(case):
    """He's variance for convolutions, 1 for scales and variances, 0 for biases and means."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.initial):
        name = path[-1].key
        if name in ("scale", "variance"):
            np.testing.assert_array_equal(leaf, 1)
        elif name in ("bias", "b", "mean"):
            np.testing.assert_array_equal(leaf, 0)
        elif leaf.ndim == 4:
            fan_in = leaf[..., 0].size
            np.testing.assert_allclose(leaf.var() * fan_in / 2, 1, atol=6 / np.sqrt(leaf.size))


@each_case
def test_float64_stays_float64(case):
    """With parameters and inputs in float64 nothing on the way is narrower."""
    with jax.enable_x64(True):
        params, state = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (case.params, case.state))
        inputs = images(dtype=np.float64)
        jaxpr = jax.make_jaxpr(functools.partial(case.model.apply, train=False))(params, state, inputs)
        floats = [var.aval.dtype for eqn in equations(jaxpr.jaxpr) for var in eqn.outvars]
        assert {dtype for dtype in floats if jnp.issubdtype(dtype, jnp.floating)} == {jnp.dtype("float64")}


GRADIENT_CASES = [pytest.param(*c, marks=pytest.mark.slow) if c[0] == "resnet18" else c for c in CASES]


@pytest.mark.parametrize(("name", "variant"), GRADIENT_CASES, ids=IDS)
def test_gradient_matches_differences_in_float64(case):
    with jax.enable_x64(True):
        params, state = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (case.params, case.state))
        inputs = images(n=2, dtype=np.float64)
        direction = shaken(jax.tree.map(jnp.zeros_like, params), 3)

        def loss(step):
            moved = jax.tree.map(lambda leaf, towards: leaf + step * towards, params, direction)
            logits, _ = case.model.apply(moved, state, inputs)
            return (logits**2).sum()

        step = 1e-6
        value_and_gradient = jax.jit(jax.value_and_grad(loss))
        _, gradient = value_and_gradient(0.0)
        (ahead, _), (behind, _) = value_and_gradient(step), value_and_gradient(-step)
        np.testing.assert_allclose(gradient, (ahead - behind) / (2 * step), rtol=1e-6)


@each_case
def test_initial_dtype_follows_the_inputs(case):
    with jax.enable_x64(True):
        images64 = jax.ShapeDtypeStruct(case.inputs.shape, jnp.float64)
        params, state = jax.eval_shape(case.model.init, jax.random.key(0), images64)
        assert {leaf.dtype for leaf in jax.tree.leaves((params, state))} == {jnp.dtype("float64")}


@each_case
def test_no_examples(case):
    logits, _ = case(case.inputs[:0])
    assert logits.shape == (0, NUM_CLASSES)


@each_case
def test_bfloat16_computes_in_bfloat16(case, name, variant):
    model = small(name, **variant, dtype="bfloat16")
    mode = {"train": True, "key": jax.random.key(2)}
    jaxpr = jax.make_jaxpr(lambda *args: model.apply(*args, **mode))(case.params, case.state, case.inputs)
    products = [eqn for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name in ("conv_general_dilated", "dot_general")]
    assert len(products) == sum(leaf.ndim > 1 for leaf in jax.tree.leaves(case.params))
    assert all(var.aval.dtype == jnp.bfloat16 for eqn in products for var in (*eqn.invars, *eqn.outvars))
    params, state = jax.eval_shape(model.init, jax.random.key(0), case.inputs)
    logits, new_state = jax.jit(model.apply)(case.params, case.state, case.inputs)
    assert {leaf.dtype for leaf in jax.tree.leaves((params, state, new_state, logits))} == {jnp.dtype("float32")}
    assert_close(logits, case(case.inputs)[0], 0.1)


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "jaxpr"):
                yield from equations(value.jaxpr)


def test_half_precision_parameters_are_widened_by_the_inputs():
    case = _case("cnn", ())
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), case.params)
    logits, _ = case.apply(half, case.state, case.inputs)
    assert_close(logits, case(case.inputs)[0], 0.1)


def test_example_keys_depend_on_the_index_alone():
    key = jax.random.key(0)
    whole = jax.random.key_data(example_keys(key, 4))
    part = jax.random.key_data(jax.jit(example_keys, static_argnums=1)(key, 2, 2))
    np.testing.assert_array_equal(part, whole[2:])
    assert len({tuple(row) for row in whole.tolist()}) == 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "inputs", [np.zeros((2, 8, 8), np.float32), np.zeros((2, 8, 8, 1), np.uint8)], ids=["rank", "dtype"]
)
def test_inputs_that_are_no_float_images_are_refused(name, inputs):
    model = small(name)
    with pytest.raises(ValueError, match=r"float \[n, H, W, C\]"):
        model.init(jax.random.key(0), inputs)
    with pytest.raises(ValueError, match=r"float \[n, H, W, C\]"):
        model.apply({}, {}, inputs)
