"""Image classifiers from Flax and Haiku behind one contract of pure functions.

    model = make_model("cnn", num_classes=10, widths=(16, 32), strides=(1, 2))
    params, state = model.init(key, images)
    logits, state = model.apply(params, state, images)

A new model is one new module with a factory, and one line in ``MODELS``.
"""

from collections.abc import Callable
from typing import Any

from models.arguments import known_arguments, one_of
from models.cnn import cnn
from models.contract import Model, example_keys
from models.haiku_cnn import haiku_cnn
from models.resnet import resnet18

MODELS: dict[str, Callable[..., Model]] = {
    "cnn": cnn,
    "resnet18": resnet18,
    "haiku_cnn": haiku_cnn,
}


def make_model(name: str, *, num_classes: int, **arguments: Any) -> Model:
    """The model called ``name`` in ``MODELS``.

    Args:
        name: a key of ``MODELS``.
        num_classes: the number of logits.
        **arguments: the architecture, as the model's factory documents it.

    Raises:
        ValueError: the name, an argument or a value is unknown; the message names the choices.
    """
    factory = MODELS[one_of("model", "name", name, tuple(MODELS))]
    known_arguments(name, factory, arguments)
    return factory(num_classes=num_classes, **arguments)


__all__ = ["MODELS", "Model", "example_keys", "make_model"]
