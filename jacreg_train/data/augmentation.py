"""From stored bytes to the model's inputs, on the device: pure functions of arrays and keys."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

_PAD = 4  # pixels on each side; the usual choice for 32 x 32 images


def normalize(images: jax.typing.ArrayLike) -> jax.Array:
    """uint8 ``[n, H, W, C]`` -> float32 in ``[-1, 1]``, 0 is mid-grey. Input Jacobians are per this unit."""
    return jnp.asarray(images, jnp.float32) / 127.5 - 1.0


def no_augmentation(key: jax.Array, images: jax.Array, *, first_example: int | jax.Array = 0) -> jax.Array:
    """The images as they are."""
    return images


def crop_flip(key: jax.Array, images: jax.Array, *, first_example: int | jax.Array = 0) -> jax.Array:
    """Pads by 4 pixels of zero (mid-grey after `normalize`), crops at random to the old size, flips half.

    Args:
        key: the step's key. Each example has its own, folded in by its index in the global batch.
        images: float ``[n, H, W, C]``.
        first_example: index of ``images[0]`` in the global batch, so that the result does not depend on how
            many devices share the batch.

    Returns:
        float ``[n, H, W, C]``.
    """

    def one(index: jax.Array, image: jax.Array) -> jax.Array:
        crop_key, flip_key = jax.random.split(jax.random.fold_in(key, index))
        row, column = jax.random.randint(crop_key, (2,), 0, 2 * _PAD + 1)
        padded = jnp.pad(image, ((_PAD, _PAD), (_PAD, _PAD), (0, 0)))
        cropped = jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)
        return jnp.where(jax.random.bernoulli(flip_key), cropped[:, ::-1], cropped)

    return jax.vmap(one)(first_example + jnp.arange(images.shape[0]), images)


AUGMENTATIONS: dict[str, Callable[..., jax.Array]] = {"none": no_augmentation, "crop_flip": crop_flip}
