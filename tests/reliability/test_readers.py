"""Whatever bytes lie in a file: each reader gives what it promises or refuses on one line, in bounded memory."""

import contextlib
import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from configs import recorded
from jacreg_train.data import DataError
from jacreg_train.data.tfrecord import read_tfrecord
from jacreg_train.telemetry import read_config, read_records, read_run_record
from tests.data import test_prepared as prepared

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["step", "seed", "model", "jacobian", "dataset", "name", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
RECORDS = b"".join(struct.pack("<Q4x", len(r)) + r + bytes(4) for r in (b"one", b"", b"three" * 9))
DEEP = b"[" * 100_000


@contextlib.contextmanager
def refused_on_one_line(*kinds):
    try:
        yield
    except kinds as error:
        assert "\n" not in str(error)  # noqa: PT017


@QUICK
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    kept=st.integers(0, len(RECORDS)),
)
def test_damaged_tfrecords(tmp_path_factory, edits, kept):
    content = bytearray(RECORDS)
    for place, value in edits:
        content[place % len(content)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.tfrecord"
    path.write_bytes(content[:kept])
    with refused_on_one_line(DataError):
        assert sum(len(record) + 16 for record in read_tfrecord(path)) == kept


def test_damaged_examples_of_a_prepared_set(tmp_path):
    random = np.random.default_rng(0)
    whole = prepared.good_records(60)
    damaged = []
    for record in map(bytearray, whole):
        for place in random.integers(0, len(record), 2):
            record[place] = random.integers(256)
        damaged.append(bytes(record[: random.integers(len(record) // 2, len(record) + 1)]))
    prepared.write_set(tmp_path, damaged)
    dataset = prepared.load(tmp_path, in_memory_bytes=0)
    refused = 0
    for index in range(len(damaged)):
        try:
            batch = dataset.read(np.array([index]))
        except DataError as error:
            refused += 1
            assert f"record {index} is not as declared" in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert (batch["image"].shape, batch["image"].dtype) == ((1, *prepared.SHAPE), np.uint8)
            assert 0 <= batch["label"][0] < prepared.NUM_CLASSES
    assert refused > 30


@pytest.mark.parametrize("length", [2**63, 2**40, 10**9])
def test_a_huge_declared_record_takes_no_memory(tmp_path, length):
    path = tmp_path / "huge.tfrecord"
    path.write_bytes(struct.pack("<Q4x", length) + bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="truncated or corrupt"):
            list(read_tfrecord(path))
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


@QUICK
@given(lines=st.lists(st.binary(max_size=20) | JSON.map(lambda tree: json.dumps(tree).encode()), max_size=4))
def test_any_bytes_as_the_local_record(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "train/loss": 2.0}\n' + b"\n".join(lines))
    with refused_on_one_line(ValueError):
        assert read_records(path)[0]["step"] <= 1


@QUICK
@given(content=st.binary(max_size=40) | JSON.map(lambda tree: json.dumps(tree).encode()))
def test_any_bytes_as_a_recorded_config(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp()
    for name in ("config.json", "run.json"):
        (folder / name).write_bytes(content)
    assert isinstance(read_config(folder), dict)
    assert isinstance(read_run_record(folder), dict)
    with refused_on_one_line(ValueError):
        assert isinstance(recorded.get_config(str(folder / "config.json")), ConfigDict)


def test_deep_nesting_is_refused(tmp_path):
    for name in ("config.json", "run.json"):
        (tmp_path / name).write_bytes(DEEP)
    (tmp_path / "metrics.jsonl").write_bytes(DEEP + b'\n{"step": 1}\n')
    assert read_config(tmp_path) == read_run_record(tmp_path) == {}
    with pytest.raises(ValueError, match="line 1: not a metric record"):
        read_records(tmp_path)
    with pytest.raises(ValueError, match="not a recorded config"):
        recorded.get_config(str(tmp_path / "config.json"))
