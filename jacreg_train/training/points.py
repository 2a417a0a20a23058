"""Where the penalty is taken: on the training batch, on a context data set, or on noise.

``points(images, context, key, first_point) -> inputs`` runs inside the training step, once per device.
``images`` are the device's training images after augmentation, ``context`` its images of the context set
(None elsewhere), and ``first_point`` is the index of its first point among all devices' points. All are
float ``[n, H, W, C]``.
"""

import math
from collections.abc import Callable

import jax

from models import example_keys

Points = Callable[..., jax.Array]


def batch_points(*, num_points: int, batch_size: int, image_shape: tuple[int, ...]) -> Points:
    """Points from the training batch: all of them, or every ``batch_size / num_points``-th.

    Evenly spaced ones lie on the device that holds them anyway, and a batch is in random order.
    """
    del image_shape
    stride = batch_size // num_points
    return lambda images, context, key, first_point: images[::stride]


def context_points(*, num_points: int, batch_size: int, image_shape: tuple[int, ...]) -> Points:
    """The next ``num_points`` images of the context data set; they are not augmented."""
    del num_points, batch_size, image_shape
    return lambda images, context, key, first_point: context


def noise_points(*, num_points: int, batch_size: int, image_shape: tuple[int, ...]) -> Points:
    """Standard normal images, new ones each step, on the scale of normalised images."""

    def points(images, context, key, first_point):
        n = images.shape[0] * num_points // batch_size  # this device's share
        keys = example_keys(key, n, first_point)
        # Drawn flat: XLA's CPU compiler takes seconds over random numbers with several small axes.
        flat = jax.vmap(lambda k: jax.random.normal(k, (math.prod(image_shape),), images.dtype))(keys)
        return flat.reshape(n, *image_shape)

    return points


POINTS: dict[str, Callable[..., Points]] = {
    "batch": batch_points,
    "context": context_points,
    "noise": noise_points,
}
