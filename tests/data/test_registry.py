import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from jacreg_train import data

SMALL = {"synthetic": {"image_shape": (6, 5, 2), "num_classes": 3, "num_examples": 40}}


def load(name, data_dir, split="train"):
    return data.load_dataset(name, split=split, data_dir=data_dir, **SMALL.get(name, {}))


@pytest.mark.parametrize("name", data.DATASETS)
def test_contract(name, digits_dir):
    dataset = load(name, digits_dir)
    indices = np.array([3, 0, 3, dataset.num_examples - 1])
    batch = dataset.read(indices)
    assert batch["image"].shape == (4, *dataset.image_shape)
    assert batch["image"].dtype == np.uint8
    assert batch["label"].shape == (4,)
    assert batch["label"].dtype == np.int32
    assert set(batch["label"]) <= set(range(dataset.num_classes))
    again = load(name, digits_dir).read(indices)
    for field in batch:
        np.testing.assert_array_equal(batch[field], again[field])
    np.testing.assert_array_equal(batch["image"][0], batch["image"][2])
    other = load(name, digits_dir, split="test").read(indices[:1])["image"]
    assert not np.array_equal(batch["image"][:1], other)


@pytest.mark.parametrize("name", data.DATASETS)
def test_learnable(name, digits_dir):
    """The nearest class mean of the training images classifies most test images."""
    train, test = (load(name, digits_dir, split) for split in ("train", "test"))
    images, labels = train.read(np.arange(train.num_examples)).values()
    means = np.stack([images[labels == k].mean(axis=0) for k in range(train.num_classes)])
    images, labels = test.read(np.arange(test.num_examples)).values()
    distances = np.square(images[:, None].astype(float) - means).sum(axis=(2, 3, 4))
    assert np.mean(distances.argmin(axis=1) == labels) > 0.85


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "not prepared": (
        {"name": "cifar10", "split": "train"},
        ["cifar10", "jacreg_train.data.prepare --name=cifar10"],
    ),
    "misspelt": ({"name": "digit", "split": "train"}, ["'digit'", "digits", "synthetic"]),
    "no name": ({"name": "../etc", "split": "train"}, ["'../etc'"]),
    "not a string": ({"name": None, "split": "train"}, ["None"]),
    "unknown split": ({"name": "synthetic", "split": "valid"}, ["split", "'valid'", "train, test"]),
    "unknown option": ({"name": "digits", "split": "train", "seed": 1}, ["seed", "in_memory_bytes"]),
    "option of another": ({"name": "synthetic", "split": "train", "in_memory_bytes": 1}, ["num_classes"]),
    "shape of rank 2": (
        {"name": "synthetic", "split": "train", "image_shape": (8, 8)},
        ["image_shape", "(8, 8)"],
    ),
    "empty shape": ({"name": "synthetic", "split": "train", "image_shape": (8, 0, 1)}, ["image_shape", "0"]),
    "shape of text": (
        {"name": "synthetic", "split": "train", "image_shape": "888"},
        ["image_shape", "'888'"],
    ),
    "no classes": ({"name": "synthetic", "split": "train", "num_classes": 0}, ["num_classes", "0"]),
    "half an example": (
        {"name": "synthetic", "split": "train", "num_examples": 1.5},
        ["num_examples", "1.5"],
    ),
    "negative seed": ({"name": "synthetic", "split": "train", "seed": -1}, ["seed", "-1"]),
    "negative limit": (
        {"name": "digits", "split": "train", "in_memory_bytes": -1},
        ["in_memory_bytes", "-1"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case, digits_dir):
    arguments, words = WRONG[case]
    started = time.monotonic()
    with pytest.raises(data.DataError) as caught:
        data.load_dataset(**arguments, data_dir=digits_dir)
    assert time.monotonic() - started < 1
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_synthetic_depends_on_its_seed_alone():
    images = [
        data.load_dataset("synthetic", split="train", seed=seed, num_examples=n).read(np.arange(4))["image"]
        for seed, n in [(0, 10), (0, 10**12), (1, 10)]
    ]
    np.testing.assert_array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])


def test_neither_tensorflow_nor_a_network(tmp_path):
    program = f"""
import socket, sys
def refuse(*arguments, **options):
    raise AssertionError("asked the network")
socket.socket.connect = socket.getaddrinfo = refuse
from jacreg_train import data
data.load_dataset("digits", split="train", data_dir={str(tmp_path)!r})
assert "tensorflow" not in sys.modules
try:
    data.load_dataset("cifar10", split="train", data_dir={str(tmp_path)!r})
except data.DataError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("refused\n", 0), done.stderr
