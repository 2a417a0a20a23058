"""Any image-classification set that TFDS has prepared as array_record, read without tensorflow."""

import io
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import tensorflow_datasets as tfds

from jacreg_train.data.dataset import Batch, DataError, Dataset, check_integer, in_memory, one_line
from jacreg_train.data.folders import require_array_record, resolve_data_dir

IN_MEMORY_BYTES = 2**29  # CIFAR and SVHN fit, ImageNet at 64 x 64 does not
_PIL_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_PIL_FORMATS = ("PNG", "JPEG", "BMP", "GIF")
_DECODING_THREADS = min(8, os.cpu_count() or 1)


def load_prepared(
    name: str,
    *,
    split: str,
    data_dir: str | os.PathLike[str] | None = None,
    in_memory_bytes: int = IN_MEMORY_BYTES,
) -> Dataset:
    """A TFDS set by its TFDS name. Reads files only and never tries a network.

    Args:
        name: ``name``, ``name/config``, either with ``:version``; the newest version otherwise.
        split: TFDS split expression, such as "train" or "train[:90%]".
        data_dir: where TFDS prepared it; $TFDS_DATA_DIR or ~/tensorflow_datasets where None.
        in_memory_bytes: a split of at most so many bytes as uint8 is decoded once, into memory. A larger one
            is read and decoded batch by batch.

    Raises:
        DataError: not prepared, or not as array_record (both with the command that helps); no such split; not
            fixed-size uint8 images with one label each; a corrupt record, or one that is not as declared.
    """
    check_integer("in_memory_bytes", in_memory_bytes, minimum=0)
    folder = require_array_record(name, resolve_data_dir(data_dir))
    builder = _open(name, folder)
    image_feature, num_classes = _image_and_label(name, builder.info.features)
    source = _open_split(name, builder, split)
    where, remedy = f"data set {name!r}, split {split!r}", f"delete {folder} and prepare it again"
    decode = _Decoder(image_feature, num_classes)

    def read(indices: np.ndarray) -> Batch:
        keys = [int(i) for i in indices]
        try:
            return decode(keys, source.__getitems__(keys))
        except (RuntimeError, ValueError, IndexError) as error:  # array_record's, and the decoder's
            what = str(error) if isinstance(error, DataError) else f"cannot read ({one_line(error)})"
            raise DataError(f"{where}: {what}; {remedy}") from error

    dataset = Dataset(name, len(source), image_feature.shape, num_classes, read)
    return in_memory(dataset) if dataset.decoded_bytes <= in_memory_bytes else dataset


class _Decoder:
    """Serialized records -> a batch, checked against the declared features; DataError names the record."""

    def __init__(self, image_feature: Any, num_classes: int):
        self._shape, self._num_classes = image_feature.shape, num_classes
        self._encoded = isinstance(image_feature, tfds.features.Image)
        label_feature = tfds.features.ClassLabel(num_classes=num_classes)
        self._features = tfds.features.FeaturesDict({"image": image_feature, "label": label_feature})
        # Decoded here and not by TFDS: sizes are then checked before a pixel is decoded.
        self._decoders = {"image": tfds.decode.SkipDecoding()} if self._encoded else None
        self._pool = ThreadPoolExecutor(_DECODING_THREADS, thread_name_prefix="decode")

    def __call__(self, keys: list[int], records: list[bytes]) -> Batch:
        images = np.empty((len(keys), *self._shape), np.uint8)
        labels = np.empty(len(keys), np.int32)

        def decode_some(places: Iterable[int]) -> None:
            for place in places:
                images[place], labels[place] = self._decode(keys[place], records[place])

        strides = [range(first, len(keys), _DECODING_THREADS) for first in range(_DECODING_THREADS)]
        list(self._pool.map(decode_some, strides))
        return {"image": images, "label": labels}

    def _decode(self, key: int, record: bytes) -> tuple[np.ndarray, int]:
        try:
            example = self._features.deserialize_example_np(record, decoders=self._decoders)
            for field, value in example.items():
                if value is None:
                    raise ValueError(f"it has no {field}")
            image, label = example["image"], example["label"]
            image = _decode_image(image, self._shape) if self._encoded else image
            if image.shape != self._shape or image.dtype != np.uint8:
                raise ValueError(f"image is {image.dtype} {image.shape}, declared uint8 {self._shape}")
            if not 0 <= label < self._num_classes:
                raise ValueError(f"label is {label}, choices: 0 to {self._num_classes - 1}")
        except Exception as error:  # parsers of foreign bytes raise anything
            raise DataError(f"record {key} is not as declared ({one_line(error)})") from error
        return image, label


def _decode_image(encoded: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    with PIL.Image.open(io.BytesIO(encoded), formats=_PIL_FORMATS) as image:
        if (image.height, image.width) != shape[:2]:
            raise ValueError(f"image is {image.height} x {image.width}, declared {shape[0]} x {shape[1]}")
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"image has {image.mode} pixels, declared uint8")
        return np.asarray(image.convert(_PIL_MODES[shape[2]])).reshape(shape)


def _open(name: str, folder: Path) -> Any:
    try:
        features = json.loads((folder / "features.json").read_text())
        for class_name in _class_names(features):
            # TFDS imports the module that the file names.
            if not class_name.startswith("tensorflow_datasets."):
                raise ValueError(f"feature class {class_name!r} is not one of tensorflow_datasets")
        return tfds.builder_from_directory(folder)
    except Exception as error:  # a malformed description fails anywhere in TFDS
        raise DataError(f"data set {name!r}: cannot read its description in {folder} ({one_line(error)})") from error


def _class_names(tree: Any) -> Iterable[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from [str(value)] if key in ("pythonClassName", "type") else _class_names(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _class_names(value)


def _open_split(name: str, builder: Any, split: str) -> Any:
    choices = ", ".join(builder.info.splits)
    if not isinstance(split, str) or not split:
        raise DataError(f"split must be a string, got {split!r}; choices for data set {name!r}: {choices}", "split")
    try:
        source = builder.as_data_source(
            split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES, file_format="array_record"
        )
    except Exception as error:  # of many kinds, by the way in which the expression is wrong
        raise DataError(
            f"split {split!r} is not one of data set {name!r}; choices: {choices}, or a part such as"
            f" {next(iter(builder.info.splits), 'train')}[:90%] ({one_line(error)})",
            "split",
        ) from error
    if not len(source):
        raise DataError(f"split {split!r} of data set {name!r} has no examples; choices: {choices}", "split")
    return source


def _image_and_label(name: str, features: Any) -> tuple[Any, int]:
    features = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    has = ", ".join(f"{key}: {type(feature).__name__}" for key, feature in features.items()) or "none by name"
    image, label = features.get("image"), features.get("label")
    if not isinstance(image, tfds.features.Image | tfds.features.Tensor) or not isinstance(
        label, tfds.features.ClassLabel
    ):
        raise DataError(
            f"data set {name!r} is not for image classification: it needs features image: Image (or Tensor)"
            f" and label: ClassLabel, and has {has}"
        )
    shape = image.shape
    if len(shape) != 3 or None in shape or shape[2] not in _PIL_MODES or image.np_dtype != np.uint8:
        raise DataError(
            f"data set {name!r}: images are {image.np_dtype} {shape}, training needs uint8 of one size and"
            f" {', '.join(map(str, _PIL_MODES))} channels (for ImageNet: imagenet_resized/64x64)"
        )
    if not label.num_classes:
        raise DataError(f"data set {name!r}: feature label declares no number of classes")
    return image, label.num_classes
