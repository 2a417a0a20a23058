"""The idx reader and what is made of its files: a made-up pair of Fashion-MNIST's form, whole and damaged."""

import contextlib
import gzip
import struct
import tracemalloc

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from jacreg_train import data
from jacreg_train.data import prepare as prepare_module
from jacreg_train.data.idx import read_idx, read_idx_split
from jacreg_train.data.prepare import main, prepare

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
LABELS = np.array([0, 9, 3, 3, 1, 7], np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_pairs(folder, images=IMAGES, labels=LABELS, *, zipped=True):
    for prefix in ("train", "t10k"):
        for array, name in [(images, "images-idx3-ubyte"), (labels, "labels-idx1-ubyte")]:
            content = gzip.compress(idx(array)) if zipped else idx(array)
            (folder / f"{prefix}-{name}{'.gz' if zipped else ''}").write_bytes(content)
    return folder


@pytest.mark.parametrize("zipped", [True, False])
def test_round_trip(tmp_path, zipped):
    images, labels = read_idx_split(write_pairs(tmp_path, zipped=zipped), "t10k")
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


WHOLE = idx(IMAGES)
HUGE = struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
BAD_FILES = {
    "empty": (b"", "truncated"),
    "half a header": (WHOLE[:9], "truncated"),
    "half the values": (WHOLE[: len(WHOLE) // 2], "hold"),
    "half the values, zipped": (gzip.compress(WHOLE[: len(WHOLE) // 2]), "truncated"),
    "zip cut off": (gzip.compress(WHOLE)[:-100], "cannot read"),
    "zip damaged": (gzip.compress(WHOLE)[:100] + bytes(100) + gzip.compress(WHOLE)[200:], "cannot read"),
    "more values": (WHOLE + b"\0", "more than"),
    "more values, zipped": (gzip.compress(WHOLE + bytes(10**7)), "more than"),
    "labels for images": (idx(LABELS) + bytes(8), "0x00000803"),
    "floats": (b"\0\0\x0d\x03" + WHOLE[4:], "0x00000803"),
    "no images": (idx(IMAGES[:0]), "hold"),
    "huge": (HUGE + bytes(100), "hold"),
    "huge, zipped": (gzip.compress(HUGE + bytes(100)), "hold"),
    "bomb": (gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 1, 1, 10**6) + bytes(3 * 10**7)), "more than"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(tmp_path, case):
    content, word = BAD_FILES[case]
    path = tmp_path / "images"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(data.DataError, match=word) as caught:
            read_idx(path, rank=3)
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(
    zipped=st.booleans(),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    kept=st.floats(0, 1),
)
def test_damaged_file_is_read_or_refused(tmp_path_factory, zipped, edits, kept):
    small = idx(IMAGES[:2, :3, :3])
    content = bytearray(gzip.compress(small) if zipped else small)
    for place, value in edits:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content[: round(kept * len(content))])
    with contextlib.suppress(data.DataError):
        assert read_idx(path, rank=3).dtype == np.uint8


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist", "kmnist"])
def test_becomes_the_set_of_tfds(tmp_path, name):
    prepare(name, source=write_pairs(tmp_path), data_dir=tmp_path)
    dataset = data.load_dataset(name, split="train", data_dir=tmp_path)
    assert (dataset.num_examples, dataset.image_shape, dataset.num_classes) == (6, (28, 28, 1), 10)
    batch = dataset.read(np.arange(6))
    # TFDS shuffles while it writes: the stock builder would in the same way.
    pairs = {(image.tobytes(), int(label)) for image, label in zip(batch["image"], batch["label"], strict=True)}
    assert pairs == {(image.tobytes(), int(label)) for image, label in zip(IMAGES, LABELS, strict=True)}
    stock = tfds.builder(name, data_dir=tmp_path).as_data_source("train")
    np.testing.assert_array_equal([stock[i]["image"] for i in range(6)], batch["image"])
    assert "already" in prepare(name, data_dir=tmp_path)


WRONG_SOURCES = {
    "labels missing": (IMAGES, LABELS[:5], "6 images.* 5 labels"),
    "label too large": (IMAGES, LABELS + np.uint8(1), "label 1 is 10, choices: 0 to 9"),
    "images of another size": (IMAGES[:, :, :27], LABELS, r"\(28, 27\).*\(28, 28\)"),
}


@pytest.mark.parametrize("case", WRONG_SOURCES)
def test_wrong_source(tmp_path, case):
    images, labels, message = WRONG_SOURCES[case]
    with pytest.raises(data.DataError, match=message):
        prepare("mnist", source=write_pairs(tmp_path, images, labels), data_dir=tmp_path)
    assert not (tmp_path / "mnist").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name=cifar10"], ["pip install 'jacreg[prepare]'"]),
        (["--name=mnist"], ["pip install 'jacreg[prepare]'", "--source="]),
        (["--name=cifar1"], ["'cifar1'", "cifar10"]),
        (["--name=cifar10", "--source=."], ["fashion_mnist, kmnist, mnist"]),
        (["--name=mnist", "--source=/nowhere"], ["/nowhere", "train-images-idx3-ubyte"]),
        (["--name=a b"], ["'a b'"]),
    ],
)
def test_command_line_errors_are_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(prepare_module.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["prepare_data.py", *arguments, f"--data_dir={tmp_path}"])
    assert main() == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    for word in words:
        assert word in message


def test_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prepare_data.py", "--name=digits", f"--data_dir={tmp_path}"])
    assert main() == 0
    assert str(tmp_path) in capsys.readouterr().out
