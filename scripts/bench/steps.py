"""Whole training steps, as training runs them: images in, new state out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from bench.cases import Case
from jacreg_train.data import AUGMENTATIONS, normalize
from jacreg_train.training.devices import jit_devices, make_mesh
from jacreg_train.training.penalty import PENALTIES
from jacreg_train.training.points import POINTS
from jacreg_train.training.state import TrainState, create_train_state
from jacreg_train.training.step import Objective, PenaltyTerm, can_share_forward, make_train_step


def training_step(
    case: Case, estimator: str | None = None, **options: Any
) -> tuple[Any, tuple[TrainState, dict[str, jax.Array], None]]:
    """A jitted step with stochastic gradient descent and momentum on one device, and its arguments.

    Args:
        case: the model and the shape of the batch.
        estimator: of the Frobenius penalty on the batch; None: the plain step.
        **options: the estimator's, and `wrt`.
    """
    n, optimizer = case.n, optax.sgd(0.1, momentum=0.9)
    term = None
    if estimator is not None:
        term = PenaltyTerm(
            penalty=PENALTIES["frobenius"](estimator, **options),
            points=POINTS["batch"](num_points=n, batch_size=n, image_shape=case.inputs.shape[1:]),
            num_points=n,
            weight=1e-4,
            shares_forward=can_share_forward(case.network, "batch", n, n),
        )
    objective = Objective(case.network, normalize, AUGMENTATIONS["none"], n, term)
    devices = jit_devices(make_mesh(jax.devices()[:1]))
    fresh = lambda: create_train_state(case.network, optimizer, image_shape=case.inputs.shape[1:], seed=0)
    images = np.random.default_rng(0).integers(0, 256, case.inputs.shape, np.uint8)
    batch = devices.put_batch({"image": images, "label": np.asarray(case.labels)})
    return devices.map(make_train_step(objective, optimizer), num_batches=2), (
        devices.make(fresh),
        batch,
        None,
    )
