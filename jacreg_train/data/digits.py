"""scikit-learn's digits as a TFDS data set of this project: 1,797 grey images of 8 x 8, 10 classes."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jacreg_train.data.dataset import Dataset
from jacreg_train.data.folders import find_prepared, publish, resolve_data_dir
from jacreg_train.data.prepared import IN_MEMORY_BYTES, load_prepared

_TEST_EVERY = 5  # every fifth example of each class is for the test


class Digits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, with a fixed stratified split: 1,442 to train on and 355 to test."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=(
                "Handwritten digits of scikit-learn (the test part of UCI's optical recognition of"
                " handwritten digits), grey levels 0 to 16 scaled to 0 to 255. Every fifth example of each"
                " class is the test split."
            ),
            features=tfds.features.FeaturesDict(
                {
                    # A tensor and not an image: encoding an array as an image would need tensorflow.
                    "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=np.uint8),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {"train": self._generate_examples(test=False), "test": self._generate_examples(test=True)}

    def _generate_examples(self, test: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        from sklearn.datasets import load_digits  # slow to import, and only needed here

        digits = load_digits()
        images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]
        seen = np.zeros(10, int)
        for index, (image, label) in enumerate(zip(images, digits.target, strict=True)):
            seen[label] += 1
            if (seen[label] % _TEST_EVERY == 0) == test:
                yield index, {"image": image, "label": int(label)}


def digits(
    *,
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    in_memory_bytes: int = IN_MEMORY_BYTES,
) -> Dataset:
    """scikit-learn's digits, prepared under ``data_dir`` at first use; arguments as of `load_prepared`."""
    folder = resolve_data_dir(data_dir)
    if find_prepared("digits", folder) is None:
        prepare_digits(folder)
    return load_prepared("digits", split=split, data_dir=folder, in_memory_bytes=in_memory_bytes)


def prepare_digits(data_dir: os.PathLike[str]) -> None:
    """Writes the digits under ``data_dir`` as array_record, safe against others doing the same."""
    publish(lambda scratch: Digits(data_dir=scratch), resolve_data_dir(data_dir))
