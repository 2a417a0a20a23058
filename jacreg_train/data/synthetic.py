"""Made-up images of any shape, for timing and for tests: a smooth pattern per class, plus noise."""

from collections.abc import Sequence

import numpy as np

from jacreg_train.data.dataset import Batch, DataError, Dataset, check_integer

SPLITS = ("train", "test")
_CELLS = 4  # a pattern is a grid of at most 4 x 4 cells, so that pooling keeps it
_OFFSETS = 2**20
MOST_VALUES = 2**26  # of an image: far beyond any use, and a slip of the keyboard must not fill the memory


def synthetic(
    *,
    split: str,
    data_dir: object = None,
    image_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    num_examples: int = 1024,
    seed: int = 0,
) -> Dataset:
    """Image ``i`` is the pattern of class ``i % num_classes`` plus noise of the same amplitude.

    Memory does not grow with ``num_examples``: an image's noise is a window, chosen by its index, of one
    fixed bank of random bytes. Both splits share the patterns; their noise differs.

    Args:
        split: "train" or "test".
        data_dir: not used; every data set takes it.
        image_shape: (height, width, channels).
        num_classes: number of classes, 1 or more.
        num_examples: number of examples in this split.
        seed: the images depend on it and on nothing else.

    Raises:
        DataError: an unknown split, or a shape or number that is no positive integer.
    """
    if split not in SPLITS:
        raise DataError(f"split {split!r} is unknown for data set 'synthetic'; choices: {', '.join(SPLITS)}", "split")
    if isinstance(image_shape, str) or not isinstance(image_shape, Sequence) or len(image_shape) != 3:
        raise DataError(f"image_shape must be (height, width, channels), got {image_shape!r}", "image_shape")
    height, width, channels = (check_integer("image_shape", size, minimum=1) for size in image_shape)
    if height * width * channels > MOST_VALUES:
        raise DataError(
            f"image_shape {tuple(image_shape)} is {height * width * channels} values; the most are {MOST_VALUES}",
            "image_shape",
        )
    check_integer("num_classes", num_classes, minimum=1)
    check_integer("num_examples", num_examples, minimum=1)
    check_integer("seed", seed, minimum=0)

    pattern_rng = np.random.default_rng((seed, 0))
    patterns = pattern_rng.integers(0, 128, (num_classes, _CELLS, _CELLS, channels), np.uint8)
    rows, columns = (np.arange(size) * _CELLS // size for size in (height, width))

    noise_rng = np.random.default_rng((seed, 1 + SPLITS.index(split)))
    window = height * width * channels
    bank = noise_rng.integers(0, 128, window + _OFFSETS - 1, np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(bank, window)

    def read(indices: np.ndarray) -> Batch:
        indices = np.asarray(indices, np.int64)
        labels = (indices % num_classes).astype(np.int32)
        offsets = indices * 2654435761 % _OFFSETS  # an odd factor: no two of 2**20 neighbours share a window
        image = patterns[labels][:, rows][:, :, columns]
        image = image + windows[offsets].reshape(image.shape)
        return {"image": image, "label": labels}

    return Dataset("synthetic", num_examples, (height, width, channels), num_classes, read)
