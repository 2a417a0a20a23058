"""The training step against the same loss written out with jax.jacrev, on one device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jacreg_train.data import AUGMENTATIONS, normalize
from jacreg_train.training.devices import PARALLEL, make_mesh
from jacreg_train.training.penalty import PENALTIES
from jacreg_train.training.points import POINTS
from jacreg_train.training.state import create_train_state
from jacreg_train.training.step import (
    Objective,
    PenaltyTerm,
    can_share_forward,
    make_gradient_norms,
    make_train_step,
)
from models import make_model

SHAPE, CLASSES, N = (4, 4, 1), 3, 4
WEIGHT, RATE = 0.1, 0.5
DEVICES = PARALLEL["jit"](make_mesh(jax.devices()[:1]))


def cnn(**arguments):
    return make_model("cnn", num_classes=CLASSES, widths=(2,), strides=(2,), dense_width=None, **arguments)


def objective(model, *, points="batch", num_points=N, wrt="params", estimator="exact", every_steps=1, **options):
    return Objective(
        model=model,
        normalize=normalize,
        augment=AUGMENTATIONS["none"],
        batch_size=N,
        term=PenaltyTerm(
            penalty=PENALTIES["frobenius"](estimator, wrt=wrt, **options),
            points=POINTS[points](num_points=num_points, batch_size=N, image_shape=SHAPE),
            num_points=num_points,
            weight=WEIGHT,
            every_steps=every_steps,
            shares_forward=can_share_forward(model, points, num_points, N),
        ),
    )


def images(seed, n=N):
    return np.random.default_rng(seed).integers(0, 256, (n, *SHAPE), np.uint8)


BATCH = {"image": images(0), "label": np.array([0, 2, 1, 2], np.int32)}
OPTIMIZER = optax.sgd(RATE)


def state_of(model):
    return create_train_state(model, OPTIMIZER, image_shape=SHAPE, seed=3)


def one_step(objective, context=None):
    """The state before and after a step, and its metrics."""
    state = state_of(objective.model)
    step = DEVICES.map(make_train_step(objective, OPTIMIZER), num_batches=2)
    after, metrics = step(state, *DEVICES.put_batch((BATCH, context)))
    return state, after, metrics


def mean_squared_jacobian(model, model_state, params, inputs, wrt="params"):
    apply = lambda params, x: model.apply(params, model_state, x[None])[0][0]
    jac = jax.vmap(jax.jacrev(apply, argnums=0 if wrt == "params" else 1), (None, 0))(params, inputs)
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jac)) / len(inputs)


def task_loss(model, model_state, params):
    logits, _ = model.apply(params, model_state, normalize(BATCH["image"]), train=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, BATCH["label"]).mean()


def assert_step_descends(loss, state, after):
    grads = jax.grad(loss)(state.params)
    expected = jax.tree.map(lambda p, g: p - RATE * g, state.params, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), after.params, expected)


@pytest.mark.parametrize("wrt", ["params", "inputs"])
def test_a_step_follows_the_gradient_of_task_loss_plus_weighted_penalty(wrt):
    model = cnn()
    state, after, metrics = one_step(objective(model, wrt=wrt))
    penalty = lambda params: mean_squared_jacobian(model, {}, params, normalize(BATCH["image"]), wrt)
    loss = lambda params: task_loss(model, {}, params) + WEIGHT * penalty(params)
    assert_step_descends(loss, state, after)
    assert int(after.step) == 1
    assert metrics["train/loss"] == pytest.approx(float(loss(state.params)), rel=1e-4)
    assert metrics["train/task_loss"] == pytest.approx(float(task_loss(model, {}, state.params)), rel=1e-4)
    assert metrics["train/penalty"] == pytest.approx(float(penalty(state.params)), rel=1e-4)
    assert metrics["train/penalty_standard_error"] == 0


def test_the_plain_step_has_no_penalty():
    model = cnn()
    state, after, metrics = one_step(dataclasses.replace(objective(model), term=None))
    assert_step_descends(lambda params: task_loss(model, {}, params), state, after)
    assert set(metrics) == {"train/loss", "train/task_loss", "train/accuracy", "finite"}


def test_a_step_with_every_steps_k_takes_k_times_the_weight():
    model = cnn()
    state, after, metrics = one_step(objective(model, every_steps=3))
    penalty = lambda params: mean_squared_jacobian(model, {}, params, normalize(BATCH["image"]))
    assert_step_descends(lambda params: task_loss(model, {}, params) + 3 * WEIGHT * penalty(params), state, after)
    assert metrics["train/loss"] == pytest.approx(
        float(metrics["train/task_loss"] + WEIGHT * metrics["train/penalty"]), rel=1e-5
    )


def test_one_shared_forward_pass_gives_what_two_give():
    shared = objective(cnn())
    assert shared.term.shares_forward
    apart = dataclasses.replace(shared, term=dataclasses.replace(shared.term, shares_forward=False))
    one, two = one_step(shared)[1], one_step(apart)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one.params, two.params)


def test_what_can_share_a_forward_pass():
    plain = cnn()
    assert can_share_forward(plain, "batch", N, N)
    assert not can_share_forward(plain, "noise", N, N)
    assert not can_share_forward(plain, "batch", N // 2, N)
    assert not can_share_forward(cnn(norm="batch"), "batch", N, N)
    assert not can_share_forward(cnn(dropout_rate=0.5), "batch", N, N)


def test_with_batch_norm_the_penalty_sees_running_statistics_and_the_task_the_batch():
    model = cnn(norm="batch")
    state, after, metrics = one_step(objective(model))
    inputs = normalize(BATCH["image"])
    penalty = lambda params: mean_squared_jacobian(model, state.model_state, params, inputs)
    assert_step_descends(
        lambda params: task_loss(model, state.model_state, params) + WEIGHT * penalty(params), state, after
    )
    assert metrics["train/penalty"] == pytest.approx(float(penalty(state.params)), rel=1e-4)
    _, expected = model.apply(state.params, state.model_state, inputs, train=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), after.model_state, expected)


def test_with_dropout_the_penalty_sees_none():
    with_dropout = one_step(objective(cnn(dropout_rate=0.9)))[2]
    without = one_step(objective(cnn()))[2]
    assert with_dropout["train/penalty"] == pytest.approx(float(without["train/penalty"]), rel=1e-5)
    assert with_dropout["train/task_loss"] != pytest.approx(float(without["train/task_loss"]), rel=1e-3)


def test_points_from_the_batch_a_context_set_and_noise():
    model, context = cnn(), images(1, 2)
    params = state_of(model).params
    mean = lambda inputs: float(mean_squared_jacobian(model, {}, params, inputs))
    metrics = one_step(objective(model, num_points=2))[2]
    assert metrics["train/penalty"] == pytest.approx(mean(normalize(BATCH["image"][::2])), rel=1e-4)
    metrics = one_step(objective(model, points="context", num_points=2), context)[2]
    assert metrics["train/penalty"] == pytest.approx(mean(normalize(context)), rel=1e-4)
    metrics = one_step(objective(model, points="noise", num_points=6))[2]
    noise = POINTS["noise"](num_points=6, batch_size=N, image_shape=SHAPE)(
        normalize(BATCH["image"]), None, jax.random.key(0), 0
    )
    assert noise.shape == (6, *SHAPE)
    assert float(metrics["train/penalty"]) > 0


def test_a_stochastic_penalty_is_told_apart_by_step_and_knows_its_error():
    model = cnn()
    terms = objective(model, estimator="stochastic", num_probes=2)
    step = DEVICES.map(make_train_step(terms, optax.sgd(0.0)), num_batches=2)
    state, batch = create_train_state(model, optax.sgd(0.0), image_shape=SHAPE, seed=3), (BATCH, None)
    penalties = []
    for _ in range(2):
        state, metrics = step(state, *DEVICES.put_batch(batch))
        penalties.append(float(metrics["train/penalty"]))
        assert metrics["train/penalty_standard_error"] > 0
    assert penalties[0] != penalties[1]


def test_gradient_norms_of_both_parts():
    model = cnn()
    terms = objective(model)
    state = state_of(model)
    norms = DEVICES.map(make_gradient_norms(terms), num_batches=2)(state, *DEVICES.put_batch((BATCH, None)))
    task = jax.grad(lambda params: task_loss(model, {}, params))(state.params)
    inputs = normalize(BATCH["image"])
    penalty = jax.grad(lambda params: WEIGHT * mean_squared_jacobian(model, {}, params, inputs))(state.params)
    assert norms["train/task_grad_norm"] == pytest.approx(float(optax.global_norm(task)), rel=1e-4)
    assert norms["train/penalty_grad_norm"] == pytest.approx(float(optax.global_norm(penalty)), rel=1e-4)
    with pytest.raises(ValueError, match="penalty"):
        make_gradient_norms(dataclasses.replace(terms, term=None))
