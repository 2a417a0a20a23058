"""The table from a data set's name to what loads it."""

import inspect
import os
from collections.abc import Callable
from typing import Any

from jacreg_train.data.dataset import DataError, Dataset
from jacreg_train.data.digits import digits
from jacreg_train.data.prepared import load_prepared
from jacreg_train.data.synthetic import synthetic

DATASETS: dict[str, Callable[..., Dataset]] = {"digits": digits, "synthetic": synthetic}


def load_dataset(name: str, *, split: str, data_dir: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """A data set by name: one of ``DATASETS``, any other name being a TFDS set prepared as array_record.

    Args:
        name: "digits", "synthetic", or a TFDS name such as "fashion_mnist" or "imagenet_resized/64x64".
        split: "train" or "test"; for all but "synthetic" any TFDS split expression.
        data_dir: where TFDS sets lie; $TFDS_DATA_DIR or ~/tensorflow_datasets where None.
        **options: of the data set's factory: ``image_shape``, ``num_classes``, ``num_examples``, ``seed`` for
            "synthetic", ``in_memory_bytes`` for the others.

    Raises:
        DataError: one line that names the field, its value and the choices or the command that helps.
    """
    factory = DATASETS.get(name) if isinstance(name, str) else None
    known = set(inspect.signature(factory or load_prepared).parameters) - {"name", "split", "data_dir"}
    for option in options:
        if option not in known:
            raise DataError(f"data set {name!r} has no option {option!r}; choices: {', '.join(sorted(known))}")
    if factory is None:
        return load_prepared(name, split=split, data_dir=data_dir, **options)
    return factory(split=split, data_dir=data_dir, **options)
