"""TFDS in, device-ready batches out. Nothing here imports tensorflow or asks a network."""

from jacreg_train.data.augmentation import AUGMENTATIONS, normalize
from jacreg_train.data.dataset import Batch, DataError, Dataset
from jacreg_train.data.registry import DATASETS, load_dataset
from jacreg_train.data.stream import BatchStream, evaluation_batches

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Batch",
    "BatchStream",
    "DataError",
    "Dataset",
    "evaluation_batches",
    "load_dataset",
    "normalize",
]
