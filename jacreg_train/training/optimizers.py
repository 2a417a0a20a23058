"""Optimisers and learning-rate schedules by name.

A new one is one entry of a table; its keyword-only arguments are the config fields that it takes.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax


def _decayed(params: Any) -> Any:
    """Weight decay is for matrices and kernels; biases and normalisation scales are left alone."""
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def sgd(
    learning_rate: optax.Schedule,
    *,
    momentum: float | None = None,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Gradient descent; weight decay is added to the gradient, as L2 regularisation does."""
    return optax.chain(
        optax.add_decayed_weights(weight_decay, mask=_decayed),
        optax.sgd(learning_rate, momentum=momentum, nesterov=nesterov),
    )


def adam(
    learning_rate: optax.Schedule, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """Adam without weight decay; use adamw for decay."""
    return optax.adam(learning_rate, b1=beta1, b2=beta2, eps=epsilon)


def adamw(
    learning_rate: optax.Schedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay: a step takes ``learning_rate * weight_decay`` of each weight."""
    return optax.adamw(learning_rate, b1=beta1, b2=beta2, eps=epsilon, weight_decay=weight_decay, mask=_decayed)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
}


def constant(peak: float) -> optax.Schedule:
    """The peak rate throughout."""
    return optax.constant_schedule(peak)


def cosine(peak: float, *, decay_steps: int, final_fraction: float = 0.0) -> optax.Schedule:
    """From the peak to ``final_fraction`` of it along half a cosine."""
    return optax.cosine_decay_schedule(peak, decay_steps, alpha=final_fraction)


def linear(peak: float, *, decay_steps: int, final_fraction: float = 0.0) -> optax.Schedule:
    """From the peak to ``final_fraction`` of it along a line."""
    return optax.linear_schedule(peak, peak * final_fraction, decay_steps)


SCHEDULES: dict[str, Callable[..., optax.Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "linear": linear,
}


def options_of(factory: Callable[..., Any]) -> list[str]:
    """The names of a factory's keyword-only arguments: the config fields that have meaning for it."""
    parameters = inspect.signature(factory).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def make_schedule(name: str, learning_rate: float, *, warmup_steps: int = 0, **options: Any) -> optax.Schedule:
    """step -> learning rate: a linear warm-up from 0 over ``warmup_steps``, then the named schedule.

    ``decay_steps`` among the options counts from step 0, the warm-up included.
    """
    if "decay_steps" in options:
        options["decay_steps"] = max(options["decay_steps"] - warmup_steps, 1)
    after = SCHEDULES[name](learning_rate, **options)
    if not warmup_steps:
        return after
    warmup = optax.linear_schedule(0.0, learning_rate, warmup_steps)
    return optax.join_schedules([warmup, after], [warmup_steps])


def make_optimizer(
    name: str, schedule: optax.Schedule, *, clip_norm: float | None = None, **options: Any
) -> optax.GradientTransformation:
    """The named optimiser on a schedule; ``clip_norm`` first scales the gradient down to that global norm."""
    optimizer = OPTIMIZERS[name](schedule, **options)
    if clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer)
