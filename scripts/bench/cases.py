"""The models of the benchmark, on random images with random labels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jacreg_train.training.devices import INIT_OPTIONS
from models import Model, make_model

NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class ModelCase:
    """A model of the benchmark.

    Attributes:
        title: for readers.
        name: the key in `models.MODELS`.
        arguments: of its factory.
        image_shape: (H, W, C).
    """

    title: str
    name: str
    arguments: dict[str, Any]
    image_shape: tuple[int, int, int] = (32, 32, 3)


EIGHT_LAYERS = {
    "widths": (32, 64, 64, 64, 96, 96, 128, 128),
    "strides": (1, 1, 2, 1, 2, 1, 2, 1),
    "readout": "mean",
    "dense_width": None,
}
TINY = {"widths": (4, 4), "strides": (2, 2), "dense_width": None, "norm": "batch"}
MODEL_CASES: dict[str, ModelCase] = {
    "cnn3": ModelCase("CNN, 3 layers", "cnn", {}),
    "cnn8": ModelCase("CNN, 8 layers", "cnn", EIGHT_LAYERS),
    "resnet18": ModelCase("ResNet18, group norm", "resnet18", {"norm": "group"}),
    "resnet18_batch": ModelCase("ResNet18, frozen batch norm", "resnet18", {"norm": "batch"}),
    # For the benchmark's own tests:
    "tiny": ModelCase("tiny CNN", "cnn", TINY, (8, 8, 3)),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and a batch.

    Attributes:
        model: its key in `MODEL_CASES`.
        network: the model; it never uses the batch's own statistics.
        state: its running statistics.
        params: its parameters.
        inputs: images `[n, H, W, C]`.
        labels: `[n]`.
    """

    model: str
    network: Model
    state: Any
    params: Any
    inputs: jax.Array
    labels: jax.Array

    @property
    def n(self) -> int:
        return len(self.inputs)

    @property
    def num_params(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))

    def apply_fn(self, params: Any, inputs: jax.Array) -> jax.Array:
        return self.network.apply(params, self.state, inputs, train=False)[0]

    def loss_gradient(self) -> Callable[[Any, jax.Array, jax.Array], Any]:
        """The plain loss's gradient, as a function of parameters, inputs and a key that it does not use."""

        def loss(params, inputs):
            losses = optax.softmax_cross_entropy_with_integer_labels(self.apply_fn(params, inputs), self.labels)
            return jnp.mean(losses)

        return lambda params, inputs, key: jax.grad(loss)(params, inputs)


def make_case(model: str, n: int) -> Case:
    """The model called `model` in `MODEL_CASES`, with `n` random images."""
    case = MODEL_CASES[model]
    network, params, state = _initialised(model)
    image_key, label_key = jax.random.split(jax.random.key(1))
    inputs = jax.random.normal(image_key, (n, *case.image_shape))
    return Case(model, network, state, params, inputs, jax.random.randint(label_key, (n,), 0, NUM_CLASSES))


@functools.lru_cache(maxsize=1)
def _initialised(model: str) -> tuple[Model, Any, Any]:
    case = MODEL_CASES[model]
    network = make_model(case.name, num_classes=NUM_CLASSES, **case.arguments)
    init = jax.jit(network.init, compiler_options=INIT_OPTIONS)
    params, state = init(jax.random.key(0), jnp.zeros((1, *case.image_shape)))
    return _frozen(network), params, state


def _frozen(network: Model) -> Model:
    """The model that uses running statistics in training too: frozen batch norm."""
    apply = lambda params, state, inputs, **_: network.apply(params, state, inputs, train=False)
    return dataclasses.replace(network, apply=apply, joint_in_training=False)
