"""`check_per_example`: joint functions are named, all others pass, nothing is computed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from jacreg_train import jacobian
from models import MODELS, make_model
from tests.jacobian.cases import CASES, X, weights
from tests.jacobian.oracle import assert_close
from tests.jacobian.test_models import ARGUMENTS


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_per_example(name):
    jacobian.check_per_example(*CASES[name]())


def normalized(p, x):
    y = x @ p["w"]
    return (y - y.mean(0)) * lax.rsqrt(y.var(0) + 1e-3)


JOINT: dict[str, Callable] = {
    "batch statistics": normalized,
    "batch statistics under remat": jax.checkpoint(normalized),
    "batch statistics under jit": jax.jit(normalized),
    "mean subtracted": lambda p, x: x @ p["w"] - jnp.mean(x @ p["w"]),
    "largest of the batch": lambda p, x: x @ p["w"] / jnp.max(x),
    "similarity of examples": lambda p, x: (x @ p["w"]) @ (x @ p["w"]).T,
    "attention between examples": lambda p, x: jax.nn.softmax(x @ x.T) @ (x @ p["w"]),
    "softmax over the batch": lambda p, x: jax.nn.softmax(x @ p["w"], axis=0),
    "the first example added": lambda p, x: x @ p["w"] + x[:1] @ p["w"],
    "cumulative sum over the batch": lambda p, x: jnp.cumsum(x @ p["w"], axis=0),
    "difference to the example at the other end": lambda p, x: x @ p["w"] - (x @ p["w"])[::-1],
    "examples sorted": lambda p, x: jnp.sort(x @ p["w"], axis=0),
    "sum of outputs": lambda p, x: jnp.sum(x @ p["w"], axis=0),
    "a carry over the batch": lambda p, x: (lax.scan(lambda h, x: (h + x, None), jnp.zeros(3), x)[0] + x) @ p["w"],
    "a batch-wide condition": lambda p, x: lax.cond(jnp.all(x > 0), lambda y: y, lambda y: 2 * y, x @ p["w"]),
}


KEY = jax.random.PRNGKey(0)
# Functions that make something for the whole batch: not joint, but other functions of a batch of one.
OF_THE_BATCH: dict[str, Callable] = {
    "one key for all": lambda p, x: x @ p["w"] * jax.random.bernoulli(KEY, 0.5, (len(x), 2)),
    "keys split": lambda p, x: (
        x @ p["w"] * jax.vmap(lambda key: jax.random.normal(key, (2,)))(jax.random.split(KEY, len(x)))
    ),
    "keys folded in": lambda p, x: (
        x @ p["w"] * jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(KEY, i), (2,)))(jnp.arange(len(x)))
    ),
}


@pytest.mark.parametrize("name", OF_THE_BATCH)
def test_random_numbers_for_the_whole_batch_are_refused(name):
    """A batch of one would draw the first example's numbers for every example."""
    with pytest.raises(ValueError, match="random"):
        jacobian.check_per_example(OF_THE_BATCH[name], weights(w=(3, 2)), X(3))


@pytest.mark.parametrize("name", JOINT)
def test_joint_functions_are_refused(name):
    with pytest.raises(ValueError, match="joint"):
        jacobian.check_per_example(JOINT[name], weights(w=(3, 2)), X(3))


@pytest.mark.parametrize("estimator", jacobian.ESTIMATORS)
@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_estimators_refuse_joint_functions(estimator, wrt):
    """A batch of one would have a number, and a wrong one; so would shapes that are traced."""
    run = jacobian.make_estimator(estimator, wrt=wrt)
    for n in (1, 3):
        with pytest.raises(ValueError, match="joint"):
            jax.jit(lambda x: run(normalized, weights(w=(3, 2)), x, jax.random.key(0)).squared_norm)(X(3)[:n])


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    model = make_model(name, num_classes=3, **ARGUMENTS[name])
    images = jnp.ones((2, 8, 8, 3))
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    params, state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    jacobian.check_per_example(lambda p, x: model.apply(p, state, x)[0], params, images)
    training = lambda p, x: model.apply(p, state, x, train=True, key=jax.random.key(1))[0]
    if model.joint_in_training:
        with pytest.raises(ValueError, match="joint"):
            jacobian.check_per_example(training, params, images)
    else:
        jacobian.check_per_example(training, params, images)


class Normalized(nnx.Module):
    """Running statistics that change in place whenever it is called."""

    def __init__(self):
        self.norm, self.w = nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.Param(jnp.ones((3, 2)))

    def __call__(self, x):
        return self.norm(x @ self.w[...])


@pytest.mark.parametrize("way", ["module", "state"])
def test_a_module_that_changes_itself_is_seen_through(way):
    module = Normalized()
    definition, state = nnx.split(module)
    of_state = lambda state, x: nnx.merge(definition, state)(x)
    function, params = (lambda module, x: module(x), module) if way == "module" else (of_state, state)
    with pytest.raises(ValueError, match="joint"):
        jacobian.check_per_example(function, params, X(3))
    module.eval()
    definition, _ = nnx.split(module)
    jacobian.check_per_example(function, params, X(3))


def test_parameters_may_be_looked_at():
    power = lambda p, x: (x @ p["w"]) ** int(p["power"])
    jacobian.check_per_example(power, {**weights(w=(3, 2)), "power": jnp.asarray(2)}, X(3))
    with pytest.raises(ValueError, match="joint"):
        jacobian.check_per_example(lambda p, x: power(p, x) - jnp.mean(x), {**weights(w=(3, 2)), "power": 2}, X(3))


def test_a_function_of_some_numbers_of_examples_is_refused_where_it_might_be_joint():
    of_pairs = lambda p, x: ((x @ p["w"]).reshape(-1, 2, 2) - jnp.mean(x)).reshape(-1, 2)
    with pytest.raises(ValueError, match=r"it takes two, but not 1009 .*any number"):
        jacobian.check_per_example(of_pairs, weights(w=(3, 2)), X(3))
    of_one = lambda p, x: (x.reshape(1, 3) @ p["w"]).reshape(1, 2)
    jacobian.check_per_example(of_one, weights(w=(3, 2)), X(3))


def test_nothing_is_computed():
    """Only shapes are needed, of a batch of any size, also of one example or none."""
    for n in (0, 1, 5):
        inputs = jax.ShapeDtypeStruct((n, 3), jnp.float32)
        with pytest.raises(ValueError, match="joint"):
            jacobian.check_per_example(lambda p, x: jnp.broadcast_to(x.mean(0), x.shape), None, inputs)
        jacobian.check_per_example(lambda p, x: jnp.tanh(x), None, inputs)


@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_joint_estimators(wrt):
    """`joint=True`: each output of the batch differentiated with respect to all parameters or all inputs."""
    params, inputs = weights(w=(3, 2)), X(3)
    leaf, function = (
        (params["w"], lambda w: normalized({"w": w}, inputs))
        if wrt == "params"
        else (inputs, lambda x: normalized(params, x))
    )
    rows = lambda leaf: jnp.sum(jax.jacrev(function)(leaf).reshape(3, 2, -1) ** 2, axis=2)
    arguments = lambda leaf: ({"w": leaf}, inputs) if wrt == "params" else (params, leaf)
    choices = [("exact", {}), ("chunked", {}), ("chunked", {"output_chunk": 4})]
    estimators = [jacobian.make_estimator(name, wrt=wrt, joint=True, **options) for name, options in choices]

    def run(leaf):
        found = [lambda leaf, e=e: e(normalized, *arguments(leaf)).per_output for e in estimators]
        return [(of(leaf), jax.grad(lambda leaf, of=of: jnp.sum(of(leaf)))(leaf)) for of in [*found, rows]]

    *found, wanted = jax.jit(run)(leaf)
    for got in found:
        assert_close(got, wanted, wrt, 1e-9)
