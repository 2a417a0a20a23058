"""Reads data sets that were written by hand, record by record, so that each can be wrong in its own way."""

import io
import json
import struct
from typing import Any

import numpy as np
import PIL.Image
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2

from jacreg_train import data
from jacreg_train.data.folders import find_prepared, resolve_data_dir
from jacreg_train.data.prepare import prepare

SHAPE, NUM_CLASSES = (4, 4, 3), 3
LABEL = ("class_label_feature.ClassLabel", {"classLabel": {"numClasses": "3"}})


def image_feature(*shape: int, dtype: str = "uint8"):
    dimensions = [str(size) for size in shape]
    return "image_feature.Image", {"image": {"shape": {"dimensions": dimensions}, "dtype": dtype}}


FEATURES = {"image": image_feature(*SHAPE), "label": LABEL}


def pixels(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, *(shape or SHAPE)), np.uint8)


def png(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def example(encoded: bytes | None, label: int | None) -> bytes:
    record = tf_example_pb2.Example()
    if encoded is not None:
        record.features.feature["image"].bytes_list.value.append(encoded)
    if label is not None:
        record.features.feature["label"].int64_list.value.append(label)
    return record.SerializeToString()


def good_records(n: int = 7) -> list[bytes]:
    return [example(png(image), index % NUM_CLASSES) for index, image in enumerate(pixels(n))]


def write_set(data_dir, records, *, features=FEATURES, file_format="array_record", declared=None, version="1.0.0"):
    """Writes the set `toy` with one split, train, in one shard; returns its folder."""
    folder = data_dir / "toy" / version
    folder.mkdir(parents=True)
    shard = folder / f"toy-train.{file_format}-00000-of-00001"
    if file_format == "array_record":
        writer = ArrayRecordWriter(str(shard), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
    else:
        shard.write_bytes(b"".join(struct.pack("<Q4x", len(r)) + r + bytes(4) for r in records))
    prefix = "tensorflow_datasets.core.features."
    content = {key: {**value, "pythonClassName": prefix + name} for key, (name, value) in features.items()}
    (folder / "features.json").write_text(
        json.dumps(
            {
                "featuresDict": {"features": content},
                "pythonClassName": prefix + "features_dict.FeaturesDict",
            }
        )
    )
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(len(records) if declared is None else declared)],
    }
    info = {"fileFormat": file_format, "name": "toy", "version": version, "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def load(data_dir: Any, name: str = "toy", **options) -> data.Dataset:
    return data.load_dataset(name, split=options.pop("split", "train"), data_dir=data_dir, **options)


def check_error(function, *words: str) -> None:
    with pytest.raises(data.DataError) as caught:
        function()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("in_memory_bytes", [0, 10**6])
def test_reads_images_in_any_order(tmp_path, in_memory_bytes):
    write_set(tmp_path, good_records())
    dataset = load(tmp_path, in_memory_bytes=in_memory_bytes)
    assert (dataset.num_examples, dataset.image_shape, dataset.num_classes) == (7, SHAPE, NUM_CLASSES)
    indices = np.array([5, 0, 5, 3])
    batch = dataset.read(indices)
    np.testing.assert_array_equal(batch["image"], pixels(7)[indices])
    np.testing.assert_array_equal(batch["label"], indices % NUM_CLASSES)
    assert batch["image"].dtype == np.uint8
    assert batch["label"].dtype == np.int32


def test_a_part_of_a_split(tmp_path):
    write_set(tmp_path, good_records())
    part = load(tmp_path, split="train[3:5]")
    np.testing.assert_array_equal(part.read(np.arange(2))["image"], pixels(7)[3:5])


def test_a_large_set_is_only_read_when_asked(tmp_path):
    write_set(tmp_path, [*good_records(2), example(b"no image", 0)])
    dataset = load(tmp_path, in_memory_bytes=3 * 48 - 1)
    dataset.read(np.arange(2))
    check_error(lambda: dataset.read(np.arange(3)), "toy", "record 2")
    check_error(lambda: load(tmp_path, in_memory_bytes=3 * 48), "toy", "record 2")


BAD_RECORDS = {
    "label too large": (example(png(pixels(1)[0]), 3), ["label", "3", "0 to 2"]),
    "label negative": (example(png(pixels(1)[0]), -1), ["label", "-1", "0 to 2"]),
    "label missing": (example(png(pixels(1)[0]), None), ["label"]),
    "image missing": (example(None, 0), ["image"]),
    "image of another size": (example(png(pixels(1, 5, 4, 3)[0]), 0), ["5 x 4", "declared 4 x 4"]),
    "image of 16 bits": (example(png(pixels(1, 4, 4)[0].astype(np.uint16)), 0), ["uint8"]),
    "image cut off": (example(png(pixels(1)[0])[:-30], 0), ["not as declared"]),
    "image that is text": (example(b"hello", 0), ["not as declared"]),
    "record that is no example": (b"\xff" * 20, ["not as declared"]),
    "empty record": (b"", ["not as declared"]),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_bad_record(tmp_path, case):
    record, words = BAD_RECORDS[case]
    write_set(tmp_path, [*good_records(3), record])
    check_error(lambda: load(tmp_path), "toy", "record 3", str(tmp_path), *words)


@pytest.mark.parametrize("record", [b"", example(png(pixels(1)[0]), 0)], ids=["empty", "example"])
def test_bad_record_of_a_tensor(tmp_path, record):
    tensor = (
        "tensor_feature.Tensor",
        {"tensor": {"shape": {"dimensions": ["4", "4", "3"]}, "dtype": "uint8"}},
    )
    write_set(tmp_path, [record], features={**FEATURES, "image": tensor})
    check_error(lambda: load(tmp_path), "toy", "record 0", "image")


BAD_FEATURES = {
    "no label": ({"image": FEATURES["image"]}, ["label", "image: Image"]),
    "no image": ({"label": LABEL}, ["image", "label: ClassLabel"]),
    "label is no class": (
        {**FEATURES, "label": ("text_feature.Text", {"text": {}})},
        ["label: Text"],
    ),
    "images of many sizes": ({**FEATURES, "image": image_feature(-1, -1, 3)}, ["one size"]),
    "images of 16 bits": ({**FEATURES, "image": image_feature(*SHAPE, dtype="uint16")}, ["uint16"]),
    "a class that is not of TFDS": ({**FEATURES, "label": ("../os.System", {})}, ["description"]),
}


@pytest.mark.parametrize("case", BAD_FEATURES)
def test_not_image_classification(tmp_path, case):
    features, words = BAD_FEATURES[case]
    write_set(tmp_path, good_records(2), features=features)
    check_error(lambda: load(tmp_path), "toy", *words)


def test_no_module_that_a_file_names_is_imported(tmp_path):
    folder = write_set(tmp_path, good_records(2))
    text = (folder / "features.json").read_text()
    (folder / "features.json").write_text(text.replace("tensorflow_datasets.core.features.image", "antigravity"))
    check_error(lambda: load(tmp_path), "antigravity", "not one of tensorflow_datasets")


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "gone"])
def test_damaged_shard(tmp_path, damage):
    shard = write_set(tmp_path, good_records()) / "toy-train.array_record-00000-of-00001"
    content = bytearray(shard.read_bytes())
    if damage == "flip":
        content = bytearray(byte ^ 0xFF for byte in content)
    kept = {"flip": len(content), "truncate": len(content) // 2, "empty": 0, "gone": 0}[damage]
    shard.write_bytes(content[:kept])
    if damage == "gone":
        shard.unlink()
    check_error(lambda: load(tmp_path), "toy", "prepare it again")


def test_fewer_records_than_declared(tmp_path):
    write_set(tmp_path, good_records(3), declared=5)
    check_error(lambda: load(tmp_path), "toy", "cannot read")


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}'])
def test_damaged_description(tmp_path, file, content):
    folder = write_set(tmp_path, good_records(2))
    (folder / file).write_text(content)
    check_error(lambda: load(tmp_path), str(tmp_path))


@pytest.mark.parametrize("split", ["valid", "train[", "train[:0]", "", None, 3])
def test_bad_split(tmp_path, split):
    write_set(tmp_path, good_records(2))
    check_error(lambda: load(tmp_path, split=split), repr(split), "choices", "train")


def test_newest_version_and_configs(tmp_path):
    write_set(tmp_path, good_records(2), version="1.0.0")
    write_set(tmp_path, good_records(3), version="1.0.10")
    write_set(tmp_path, good_records(4), version="1.0.9")
    assert load(tmp_path).num_examples == 3
    assert load(tmp_path, "toy:1.0.9").num_examples == 4
    (tmp_path / "other").mkdir()
    (tmp_path / "toy").rename(tmp_path / "other" / "small")
    assert find_prepared("other/small", tmp_path) is not None
    check_error(lambda: load(tmp_path, "other"), "other/small")


def test_tfrecord_is_converted(tmp_path):
    write_set(tmp_path, good_records(), file_format="tfrecord")
    command = f"--name=toy --data_dir={tmp_path}"
    check_error(lambda: load(tmp_path), "tfrecord", "array_record", command)
    assert "converted" in prepare("toy", data_dir=tmp_path)
    np.testing.assert_array_equal(load(tmp_path).read(np.arange(7))["image"], pixels(7))
    assert "already" in prepare("toy", data_dir=tmp_path)


@pytest.mark.parametrize("damage", ["truncate", "length", "declared"])
def test_damaged_tfrecord(tmp_path, damage):
    declared = 9 if damage == "declared" else None
    folder = write_set(tmp_path, good_records(), file_format="tfrecord", declared=declared)
    shard = folder / "toy-train.tfrecord-00000-of-00001"
    content = shard.read_bytes()
    if damage == "truncate":
        shard.write_bytes(content[:-5])
    if damage == "length":
        shard.write_bytes(struct.pack("<Q", 2**62) + content[8:])
    check_error(lambda: prepare("toy", data_dir=tmp_path), str(shard))
    check_error(lambda: load(tmp_path), "tfrecord")  # nothing was entered


def test_data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert resolve_data_dir(None) == resolve_data_dir("") == tmp_path
    check_error(lambda: load(3), "data_dir", "3")
    check_error(lambda: load("a\0b"), "data_dir")
