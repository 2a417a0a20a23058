"""Gives a TFDS set that was prepared as tfrecord a second set of files in array_record, without tensorflow.

Both formats hold the same serialized examples, so the bytes are copied. A tfrecord is a sequence of: length
(uint64, little-endian), its checksum (4 bytes), the record, its checksum (4 bytes). Framing and counts are
checked, checksums are not: the images' own formats have theirs.
"""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter

from jacreg_train.data.dataset import DataError, one_line


def convert_to_array_record(folder: Path) -> None:
    """Writes array_record shards beside the tfrecord ones and then enters them in ``dataset_info.json``.

    Killed before the end, it leaves the set as it was, and can be run again.

    Raises:
        DataError: the set is not of tfrecord files, a shard is not as declared, or writing fails.
    """
    try:
        splits = tfds.builder_from_directory(folder).info.splits
        for split in splits.values():
            for source, count in zip(split.filepaths, split.shard_lengths, strict=True):
                if ".tfrecord-" not in source.name:
                    raise DataError(f"{source}: not the name of a tfrecord shard, cannot convert it")
                _convert_shard(Path(source), count)
        _enter_format(folder / "dataset_info.json")
    except (OSError, RuntimeError) as error:
        raise DataError(f"cannot convert {folder} to array_record ({one_line(error)})") from error


def _convert_shard(source: Path, count: int) -> None:
    writer = ArrayRecordWriter(
        str(source.with_name(source.name.replace(".tfrecord-", ".array_record-"))), "group_size:1"
    )
    written = 0
    for record in read_tfrecord(source):
        writer.write(record)
        written += 1
    writer.close()
    if written != count:
        raise DataError(f"{source}: has {written} records, dataset_info.json says {count}")


def read_tfrecord(path: Path) -> Iterator[bytes]:
    """The records of a file. Raises DataError where the framing does not fit the file's size."""
    left = path.stat().st_size
    with path.open("rb") as stream:
        while left:
            header = stream.read(12)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else left
            left -= 16 + length
            if left < 0:
                raise DataError(f"{path}: truncated or corrupt")
            yield stream.read(length)
            stream.read(4)


def _enter_format(path: Path) -> None:
    info = json.loads(path.read_text())
    info["alternativeFileFormats"] = [*info.get("alternativeFileFormats", ()), "array_record"]
    scratch = path.with_suffix(".json.new")
    scratch.write_text(json.dumps(info, indent=2))
    os.replace(scratch, path)
