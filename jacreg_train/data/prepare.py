"""Prepares TFDS data sets as array_record, without tensorflow where that is possible.

    python -m jacreg_train.data.prepare --name=fashion_mnist --source=/usr/share/datasets/fashion-mnist

* `digits`: always possible.
* `fashion_mnist`, `mnist`, `kmnist`: from their idx files in ``--source``, plain or gzipped.
* A set that is already there as tfrecord: gets array_record files beside those.
* Any other TFDS set: by TFDS itself, which downloads it and needs tensorflow.
"""

import argparse
import difflib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import tensorflow_datasets as tfds

from jacreg_train.data.dataset import DataError, one_line
from jacreg_train.data.digits import prepare_digits
from jacreg_train.data.folders import IDX_SOURCES, find_prepared, publish, resolve_data_dir
from jacreg_train.data.idx import read_idx_split
from jacreg_train.data.tfrecord import convert_to_array_record

_IDX_PREFIXES = {"train": "train", "test": "t10k"}


def prepare(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> str:
    """Prepares a data set unless it is there already; returns one line that says what was done.

    Args:
        name: TFDS name, or "digits".
        source: folder of idx files, for the sets that come as such.
        data_dir: where to put the set; $TFDS_DATA_DIR or ~/tensorflow_datasets where None.

    Raises:
        DataError: one line: unknown name, files missing or wrong, folder not writable, tensorflow needed.
    """
    folder = resolve_data_dir(data_dir)
    there = find_prepared(name, folder)
    if there and "array_record" in there.formats:
        return f"{name} is already prepared in {there.folder}"
    if there and "tfrecord" in there.formats:
        convert_to_array_record(there.folder)
        return f"converted {name} to array_record in {there.folder}"
    if there:
        raise DataError(f"{there.folder} holds {', '.join(there.formats)}, which cannot be converted: delete it")
    if name == "digits":
        prepare_digits(folder)
    elif source is not None:
        _prepare_idx(name, Path(source), folder)
    else:
        _prepare_with_tensorflow(name, folder)
    return f"prepared {name} in {folder}"


def _prepare_idx(name: str, source: Path, data_dir: Path) -> None:
    """As the stock TFDS builder would: same name, version, features, keys, and so the same order."""
    if name not in IDX_SOURCES:
        raise DataError(f"data set {name!r} is not one that is made from idx files; choices: {', '.join(IDX_SOURCES)}")
    stock = tfds.builder_cls(name)
    splits = {split: read_idx_split(source, prefix) for split, prefix in _IDX_PREFIXES.items()}

    class IdxBuilder(stock, skip_registration=True):  # type: ignore[valid-type, misc, call-arg]
        def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
            features = self.info.features
            for images, labels in splits.values():
                _check_declared(source, images, labels, features["image"].shape, features["label"].num_classes)
            return {split: self._generate_examples(*arrays) for split, arrays in splits.items()}

        def _generate_examples(self, images: np.ndarray, labels: np.ndarray) -> Iterator[Any]:
            for index, (image, label) in enumerate(zip(images, labels, strict=True)):
                # A PIL image, since TFDS encodes an array with tensorflow.
                yield index, {"image": PIL.Image.fromarray(image), "label": int(label)}

    IdxBuilder.name = name
    IdxBuilder.__module__ = stock.__module__
    publish(lambda scratch: IdxBuilder(data_dir=scratch), data_dir)


def _check_declared(
    source: Path, images: np.ndarray, labels: np.ndarray, shape: tuple[int, ...], num_classes: int
) -> None:
    if images.shape[1:] != shape[:2]:
        raise DataError(f"{source}: images are {images.shape[1:]}, the data set's are {shape[:2]}")
    if labels.max() >= num_classes:
        index = int(labels.argmax())
        raise DataError(f"{source}: label {index} is {labels[index]}, choices: 0 to {num_classes - 1}")


def _prepare_with_tensorflow(name: str, data_dir: Path) -> None:
    stem = re.split("[/:]", name)[0]
    stock = tfds.list_builders(with_community_datasets=False)
    if stem not in stock:
        close = ", ".join(difflib.get_close_matches(stem, stock)) or "see tensorflow.org/datasets/catalog"
        raise DataError(f"data set {name!r} is unknown to TFDS; the closest names: {close}")
    if importlib.util.find_spec("tensorflow") is None:
        idx = f", or give its idx files: --source={IDX_SOURCES[name]}" if name in IDX_SOURCES else ""
        raise DataError(f"preparing {name!r} needs tensorflow, for this once: pip install 'jacreg[prepare]'{idx}")
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
        builder.download_and_prepare()
    except Exception as error:  # downloads and archives fail in many ways
        raise DataError(f"TFDS cannot prepare {name!r} in {data_dir} ({one_line(error)})") from error


def main() -> int:
    """The command line: prints what was done; an error is one line, and exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="TFDS name, such as fashion_mnist or cifar10")
    parser.add_argument("--source", help="folder of idx files, for fashion_mnist, mnist and kmnist")
    parser.add_argument("--data_dir", help="where to put it (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)")
    arguments = parser.parse_args()
    try:
        print(prepare(arguments.name, source=arguments.source, data_dir=arguments.data_dir))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
