import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jacreg_train import data

IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(16, 6, 5, 2)), jnp.float32)
KEY = jax.random.key(3)


def test_normalize():
    images = data.normalize(np.array([0, 255], np.uint8).reshape(1, 1, 2, 1))
    assert images.dtype == jnp.float32
    np.testing.assert_array_equal(images.ravel(), [-1, 1])


@pytest.mark.parametrize("name", data.AUGMENTATIONS)
def test_contract(name):
    augment = jax.jit(data.AUGMENTATIONS[name])
    images = augment(KEY, IMAGES)
    assert images.shape == IMAGES.shape
    assert images.dtype == IMAGES.dtype
    np.testing.assert_array_equal(images, augment(KEY, IMAGES))
    halves = [augment(KEY, IMAGES[:8]), augment(KEY, IMAGES[8:], first_example=8)]
    np.testing.assert_array_equal(images, jnp.concatenate(halves))


def test_crop_flip_gives_shifted_and_flipped_images():
    height, width = IMAGES.shape[1:3]
    found = []
    for image, original in zip(np.asarray(jax.jit(data.AUGMENTATIONS["crop_flip"])(KEY, IMAGES)), IMAGES, strict=True):
        padded = np.pad(original, ((4, 4), (4, 4), (0, 0)))
        matches = [
            (row, column, flip)
            for row in range(9)
            for column in range(9)
            for flip in (1, -1)
            if np.array_equal(image, padded[row : row + height, column : column + width][:, ::flip])
        ]
        assert len(matches) == 1
        found += matches
    rows, columns, flips = map(set, zip(*found, strict=True))
    assert min(len(rows), len(columns)) >= 5
    assert flips == {1, -1}
