"""Reads idx files, the format of MNIST and its kin, plain or gzipped, from sources that are not trusted.

A file is two zero bytes, a type byte (8: uint8), the rank, the sizes as big-endian uint32, and the values.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from jacreg_train.data.dataset import DataError, one_line

MAX_BYTES = 2**30  # of values in one file; EMNIST, the largest of the kind, has 0.55e9
_UINT8 = 8
_DEFLATE_RATIO = 1032  # gzip cannot expand by more


def read_idx(path: Path, *, rank: int) -> np.ndarray:
    """The values of one file: uint8 of ``rank`` axes.

    Allocates nothing before the declared sizes were compared with the size of the file, and never
    decompresses more than they declare.

    Raises:
        DataError: unreadable, not idx, another type or rank, no values, sizes that the file cannot hold,
            truncated, or followed by more bytes.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if zipped else raw as stream:
                header = stream.read(4 + 4 * rank)
                shape = _parse_header(path, header, rank)
                count = math.prod(shape)
                most = min(MAX_BYTES, file_bytes * (_DEFLATE_RATIO if zipped else 1))
                if not 0 < count <= most:
                    raise DataError(f"{path}: declares {count} values {shape}, its {file_bytes} bytes hold 1 to {most}")
                values = stream.read(count)
                if len(values) < count:
                    raise DataError(f"{path}: truncated, has {len(values)} of the {count} values it declares")
                if stream.read(1):
                    raise DataError(f"{path}: has more than the {count} values it declares")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot read ({one_line(error)})") from error
    return np.frombuffer(values, np.uint8).reshape(shape)


def _parse_header(path: Path, header: bytes, rank: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * rank:
        raise DataError(f"{path}: truncated, no idx header of rank {rank}")
    if header[:4] != bytes([0, 0, _UINT8, rank]):
        raise DataError(
            f"{path}: starts with 0x{header[:4].hex()}, an idx file of uint8 and rank {rank} starts"
            f" with 0x000008{rank:02x}"
        )
    return struct.unpack(f">{rank}I", header[4:])


def read_idx_split(folder: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 ``[n, H, W]`` and labels uint8 ``[n]`` of the split whose files start with ``prefix``.

    Raises:
        DataError: a file is missing or wrong, or there are more images than labels or fewer.
    """
    images_path, labels_path = _find(folder, prefix, "images", 3), _find(folder, prefix, "labels", 1)
    images, labels = read_idx(images_path, rank=3), read_idx(labels_path, rank=1)
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images)} images, {labels_path} has {len(labels)} labels")
    return images, labels


def _find(folder: Path, prefix: str, what: str, rank: int) -> Path:
    stems = [f"{prefix}-{what}-idx{rank}-ubyte", f"{prefix}-{what}.idx{rank}-ubyte"]
    choices = [stem + suffix for stem in stems for suffix in (".gz", "")]
    for choice in choices:
        if (folder / choice).is_file():
            return folder / choice
    raise DataError(f"{folder}: has none of {', '.join(choices)}")
