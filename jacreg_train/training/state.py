"""Everything that a training step changes, in one pytree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from models import Model


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The whole state of a run on the devices; with the data position it is what a checkpoint holds.

    Attributes:
      step: int32 scalar, number of steps done.
      params: trainable float arrays.
      model_state: running statistics, empty for models without any.
      opt_state: the optimiser's.
      key: the run's random key. It never changes: step t uses ``fold_in(key, t)``, so that a resumed run
        draws what an uninterrupted one would have drawn.
      skipped: int32 scalar, how many of the steps changed nothing, since something in them was not finite.
    """

    step: jax.Array
    params: Any
    model_state: Any
    opt_state: Any
    key: jax.Array
    skipped: jax.Array


def create_train_state(
    model: Model, optimizer: optax.GradientTransformation, *, image_shape: tuple[int, ...], seed: int
) -> TrainState:
    """A fresh state. Pure and traceable; the same for the same seed."""
    init_key, run_key = jax.random.split(jax.random.key(seed))
    params, model_state = model.init(init_key, jnp.zeros((1, *image_shape)))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        model_state=model_state,
        opt_state=optimizer.init(params),
        key=run_key,
        skipped=jnp.zeros((), jnp.int32),
    )
