"""What a data set is here: a size, a shape, and a function from indices to a batch."""

import dataclasses
import numbers
from collections.abc import Callable

import numpy as np

Batch = dict[str, np.ndarray]


class DataError(ValueError):
    """A data set that cannot be had as asked for: one line with the value and the way out.

    Args:
        message: the line.
        argument: which argument of `load_dataset` it is about, "name" where it is the set itself.
    """

    def __init__(self, message: str, argument: str = "name"):
        super().__init__(message)
        self.argument = argument


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Labelled images with random access.

    Attributes:
        name: the name it was loaded by.
        num_examples: number of examples, at least 1.
        image_shape: (height, width, channels) of every image.
        num_classes: labels are in ``[0, num_classes)``; every batch that ``read`` returns was checked.
        read: indices, int ``[b]`` in ``[0, num_examples)`` -> ``{"image": uint8 [b, H, W, C], "label": int32
            [b]}``. Pure: the same indices give the same bytes. DataError for a record not as declared.
    """

    name: str
    num_examples: int
    image_shape: tuple[int, int, int]
    num_classes: int
    read: Callable[[np.ndarray], Batch]

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all images as uint8."""
        return self.num_examples * int(np.prod(self.image_shape, dtype=object))


def in_memory(dataset: Dataset, *, chunk: int = 1024) -> Dataset:
    """The same data set, read and checked once, then served from two arrays."""
    images = np.empty((dataset.num_examples, *dataset.image_shape), np.uint8)
    labels = np.empty(dataset.num_examples, np.int32)
    for start in range(0, dataset.num_examples, chunk):
        indices = np.arange(start, min(start + chunk, dataset.num_examples))
        batch = dataset.read(indices)
        images[indices], labels[indices] = batch["image"], batch["label"]
    return dataclasses.replace(dataset, read=lambda i: {"image": images[i], "label": labels[i]})


def check_integer(field: str, value: object, *, minimum: int) -> int:
    """``value``, if it is an integer of at least ``minimum``; else DataError naming ``field``."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < minimum:
        raise DataError(f"{field} must be an integer of at least {minimum}, got {value!r}", field)
    return int(value)


def one_line(error: BaseException) -> str:
    """The error's kind and text on one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
