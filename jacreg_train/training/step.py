"""The training step: task loss plus weighted penalty, on one device's share of a batch, joined over devices.

Three functions come from one objective: the regularised step, the plain step without the penalty, and the
gradient norms of both parts. All are pure; ``devices.Devices.map`` runs them on all devices.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jacreg_train import jacobian
from jacreg_train.training.devices import AXIS, joined_axis, sum_over_devices
from jacreg_train.training.finite import all_finite, finite_flags, keep_unless
from jacreg_train.training.penalty import Penalty
from jacreg_train.training.points import Points
from jacreg_train.training.state import TrainState
from models import Model

Batch = dict[str, jax.Array]  # image uint8 [b, H, W, C], label int32 [b]: one device's share


@dataclasses.dataclass(frozen=True)
class PenaltyTerm:
    """The penalty's part of the loss: ``weight`` * mean of the penalty over its points.

    Attributes:
      penalty: see ``penalty.PENALTIES``.
      points: where it is taken, see ``points.POINTS``.
      num_points: points of all devices.
      weight: of the mean.
      every_steps: the penalty is taken on every so many-th step, there with ``every_steps`` times the weight
        (lazy regularisation, Karras et al. 2020, https://arxiv.org/abs/1912.04958).
      shares_forward: whether its outputs feed the task loss, see ``can_share_forward``.
    """

    penalty: Penalty
    points: Points
    num_points: int
    weight: float
    every_steps: int = 1
    shares_forward: bool = False


@dataclasses.dataclass(frozen=True)
class Objective:
    """What training minimises: the mean cross-entropy of the batch, plus the penalty's term if there is one.

    Attributes:
      model: the network.
      normalize: images uint8 ``[n, H, W, C]`` -> float.
      augment: ``(key, images [n, H, W, C], first_example=i) -> images``.
      batch_size: examples in the batch of all devices.
      term: the penalty's; None for the plain loss.
    """

    model: Model
    normalize: Callable[[jax.Array], jax.Array]
    augment: Callable[..., jax.Array]
    batch_size: int
    term: PenaltyTerm | None = None


def can_share_forward(model: Model, points: str, num_points: int, batch_size: int) -> bool:
    """Whether one forward pass can serve the task loss and the penalty.

    It can where both see the same points and the model computes the same function in training as in
    evaluation, since the penalty always sees running statistics and no dropout.
    """
    coupled_or_random = model.joint_in_training or model.stochastic_in_training
    return points == "batch" and num_points == batch_size and not coupled_or_random


def eval_apply(model: Model, model_state: Any) -> Callable[[Any, jax.Array], jax.Array]:
    """``apply_fn(params, inputs) -> logits`` with running statistics and no dropout: per example."""
    return lambda params, inputs: model.apply(params, model_state, inputs, train=False)[0]


def changing(state: TrainState) -> dict[str, Any]:
    """The parts of a state that a step computes anew."""
    return {"params": state.params, "model_state": state.model_state, "opt_state": state.opt_state}


def _loss_parts(objective: Objective, state: TrainState, batch: Batch, context: Any) -> Callable[..., Any]:
    """``parts(params) -> ((task loss, penalty), (new model state, shares))``: this device's share of each.

    The shares add up over devices to the mean cross-entropy and to the mean penalty.
    """
    model, model_state, term = objective.model, state.model_state, objective.term
    n = len(batch["label"])
    device = jax.lax.axis_index(AXIS)
    first_example = device * n  # randomness depends on an example's index in the whole batch, not on devices
    augment_key, model_key, points_key, probe_key = jax.random.split(jax.random.fold_in(state.key, state.step), 4)
    images = objective.augment(augment_key, objective.normalize(batch["image"]), first_example=first_example)

    def task_logits(params):
        return model.apply(
            params,
            model_state,
            images,
            train=True,
            key=model_key,
            first_example=first_example,
            axis_name=joined_axis(),
        )

    def penalty_value(params, term: PenaltyTerm):
        first_point = device * (n * term.num_points // objective.batch_size)
        context_images = None if context is None else objective.normalize(context)
        inputs = term.points(images, context_images, points_key, first_point)
        return term.penalty(eval_apply(model, model_state), params, inputs, probe_key, first_point)

    def parts(params):
        penalty, error = jnp.zeros(()), {}
        if term is not None:
            value = penalty_value(params, term)
            penalty = value.value / term.num_points
            if value.shared_draws is None:  # errors of different points are independent
                error = {"penalty_variance": jax.lax.stop_gradient(value.standard_error / term.num_points) ** 2}
            else:
                error = {"penalty_draws": jax.lax.stop_gradient(value.shared_draws / term.num_points)}
        if term is not None and term.shares_forward:
            logits, new_model_state = value.outputs, model_state
        else:
            logits, new_model_state = task_logits(params)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        correct = jnp.sum(jnp.argmax(logits, axis=-1) == batch["label"])
        shares = {"penalty": penalty, "accuracy": correct / objective.batch_size, **error}
        return (jnp.sum(losses) / objective.batch_size, penalty), (new_model_state, shares)

    return parts


def make_train_step(
    objective: Objective, optimizer: optax.GradientTransformation
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """One step on one device's share: ``step(state, batch, context) -> (state, metrics)``.

    Args:
      objective: what is minimised; with ``term=None`` this is the plain step.
      optimizer: turns the gradient into an update.

    Returns:
      The step. ``context`` is the device's uint8 images of the context set, or None. The metrics are
      scalars: ``train/loss`` (task loss + weight * penalty), ``train/task_loss``, ``train/accuracy``
      (before the update, in training mode), and with a penalty ``train/penalty`` (mean over its points,
      without the weight) and ``train/penalty_standard_error`` (of that mean; nan where it cannot be told).
      One more entry, ``finite``, holds the flags of ``finite.finite_flags``. Where one is False the step is
      counted, as done and as skipped, and changes nothing else.
    """
    term = objective.term
    step_weight = 0.0 if term is None else term.weight * term.every_steps

    def step(state: TrainState, batch: Batch, context: Any):
        parts = _loss_parts(objective, state, batch, context)

        def loss(params):
            (task_loss, penalty), aux = parts(params)
            return task_loss + step_weight * penalty, (task_loss, *aux)

        (_, (task_loss, model_state, shares)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        grads, task_loss, shares = sum_over_devices((grads, task_loss, shares))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        metrics = {
            "train/loss": task_loss,
            "train/task_loss": task_loss,
            "train/accuracy": shares["accuracy"],
        }
        if term is not None:
            metrics |= _penalty_metrics(shares)
            metrics["train/loss"] += term.weight * shares["penalty"]
        old = changing(state)
        new = dict(zip(old, (optax.apply_updates(state.params, updates), model_state, opt_state), strict=True))
        metrics["finite"] = finite_flags(metrics, {"params": grads}, new)
        ok = all_finite(metrics["finite"])
        new_state = TrainState(
            step=state.step + 1, key=state.key, skipped=state.skipped + ~ok, **keep_unless(ok, new, old)
        )
        return new_state, metrics

    return step


def make_gradient_norms(objective: Objective) -> Callable[..., dict[str, jax.Array]]:
    """The norms of both parts' gradients on one step's batch: ``norms(state, batch, context) -> metrics``.

    Both are pulled back through one forward pass. That costs a forward and two backward passes beside the
    step's own, so the loop calls it on logged steps only. It is no part of the step, which therefore is one
    and the same program throughout: how often a run logs does not change its numbers.

    Returns:
      The function; its metrics are ``train/task_grad_norm``, ``train/penalty_grad_norm`` (weight included:
      the two gradients as they stand in the loss), ``train/penalty`` and ``train/penalty_standard_error``.
    """
    term = objective.term
    if term is None:
        raise ValueError("gradient norms of both parts need an objective with a penalty")

    def norms(state: TrainState, batch: Batch, context: Any):
        parts = _loss_parts(objective, state, batch, context)
        (task_loss, penalty), pullback, (_, shares) = jax.vjp(parts, state.params, has_aux=True)
        (task_grads,) = pullback((jnp.ones_like(task_loss), jnp.zeros_like(penalty)))
        (penalty_grads,) = pullback((jnp.zeros_like(task_loss), jnp.full_like(penalty, term.weight)))
        task_grads, penalty_grads, shares = sum_over_devices((task_grads, penalty_grads, shares))
        return {
            "train/task_grad_norm": optax.global_norm(task_grads),
            "train/penalty_grad_norm": optax.global_norm(penalty_grads),
            **_penalty_metrics(shares),
        }

    return norms


def _penalty_metrics(shares: dict[str, jax.Array]) -> dict[str, jax.Array]:
    if "penalty_draws" in shares:
        error = jacobian.standard_error_of_mean(shares["penalty_draws"])
    else:
        error = jnp.sqrt(shares["penalty_variance"])
    return {"train/penalty": shares["penalty"], "train/penalty_standard_error": error}
