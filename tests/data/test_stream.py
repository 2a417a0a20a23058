import threading
from typing import Any

import numpy as np
import pytest

from jacreg_train import data

N = 10
ARGUMENTS: dict[str, Any] = {"batch_size": 4, "seed": 5}
ORDER = [3, 6, 2, 4, 5, 7, 0, 9]


def counting(n: int = N) -> data.Dataset:
    """Example i has label i, so that a batch tells which examples it holds."""
    read: Any = lambda indices: {
        "image": np.repeat(indices, 4).reshape(-1, 2, 2, 1).astype(np.uint8),
        "label": np.asarray(indices, np.int32),
    }
    return data.Dataset("counting", n, (2, 2, 1), n, read)


def labels(stream: data.BatchStream, count: int) -> np.ndarray:
    return np.concatenate([next(stream)["label"] for _ in range(count)])


def test_every_example_once_per_epoch():
    seen = labels(data.BatchStream(counting(), **ARGUMENTS), 5 * 3).reshape(-1, N)
    np.testing.assert_array_equal(np.sort(seen, axis=1), np.tile(np.arange(N), (6, 1)))
    assert len(np.unique(seen, axis=0)) == 6


def test_order_is_of_the_seed():
    """The order is part of what a checkpoint relies on: it must not change with a library's version."""
    np.testing.assert_array_equal(labels(data.BatchStream(counting(), **ARGUMENTS), 2), ORDER)
    other = labels(data.BatchStream(counting(), batch_size=4, seed=6), 2)
    assert not np.array_equal(other, ORDER)


def test_resume_is_bitwise():
    stream = data.BatchStream(counting(), **ARGUMENTS)
    labels(stream, 4)
    state = stream.get_state()
    expected = [next(stream) for _ in range(5)]
    resumed = data.BatchStream(counting(), **ARGUMENTS)
    next(resumed)
    resumed.set_state(state)
    assert resumed.get_state() == state
    assert resumed.epoch == 4 * 4 / N
    for batch in expected:
        again = next(resumed)
        for field in batch:
            np.testing.assert_array_equal(batch[field], again[field])
    assert all(type(value) is int for value in state.values())


@pytest.mark.parametrize("changed", [{"seed": 1}, {"batch_size": 5}, {"num_examples": 9}, {"position": -1}])
def test_state_of_another_stream_is_refused(changed):
    stream = data.BatchStream(counting(), **ARGUMENTS)
    with pytest.raises(data.DataError, match=next(iter(changed))):
        stream.set_state({**stream.get_state(), **changed})
    with pytest.raises(data.DataError, match="position"):
        stream.set_state({"step": 3})


@pytest.mark.parametrize(
    ("field", "value"), [("batch_size", 11), ("batch_size", 0), ("batch_size", True), ("seed", -1)]
)
def test_wrong_arguments(field, value):
    with pytest.raises(data.DataError, match=f"{field}.*{value}"):
        data.BatchStream(counting(), **{**ARGUMENTS, field: value})


def test_an_error_while_reading_reaches_the_caller():
    def read(indices):
        raise data.DataError("record 3 is corrupt")

    stream = data.BatchStream(data.Dataset("broken", N, (2, 2, 1), N, read), **ARGUMENTS)
    for _ in range(2):
        stream.read_ahead()
        with pytest.raises(data.DataError, match="record 3"):
            next(stream)


def test_the_next_batch_is_read_and_placed_in_a_thread_and_once():
    dataset, threads, begun = counting(), [], threading.Event()

    def place(batch):
        threads.append(threading.current_thread())
        begun.set()
        return batch["label"].tolist()

    stream = data.BatchStream(dataset, **ARGUMENTS, place=place)
    assert next(stream) == ORDER[:4]
    begun.clear()
    stream.read_ahead()
    assert begun.wait(10)
    assert stream.get_state()["position"] == 1  # what is ahead was not handed out
    assert next(stream) == ORDER[4:]
    assert len(threads) == 2
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("n", "batch_size", "multiple_of", "sizes"),
    [(10, 4, 2, [4, 4, 4]), (10, 5, 2, [6, 6]), (10, 64, 8, [16]), (10, 5, 1, [5, 5]), (1, 1, 1, [1])],
)
def test_evaluation_counts_every_example_once(n, batch_size, multiple_of, sizes):
    batches = list(data.evaluation_batches(counting(n), batch_size=batch_size, multiple_of=multiple_of))
    assert [len(batch["label"]) for batch in batches] == sizes
    mask = np.concatenate([batch["mask"] for batch in batches])
    assert mask.dtype == np.float32
    assert set(mask) <= {0.0, 1.0}
    seen = np.concatenate([batch["label"] for batch in batches])
    np.testing.assert_array_equal(seen[mask == 1], np.arange(n))


def test_evaluation_arguments_are_checked_at_once():
    with pytest.raises(data.DataError, match="multiple_of"):
        data.evaluation_batches(counting(), batch_size=4, multiple_of=0)


def test_parts_of_processes_make_up_the_whole():
    whole = data.BatchStream(counting(), batch_size=4, seed=0)
    parts = [data.BatchStream(counting(), batch_size=4, seed=0, part=(index, 2)) for index in range(2)]
    for _ in range(5):
        together = [next(part)["label"] for part in parts]
        assert [len(labels) for labels in together] == [2, 2]
        np.testing.assert_array_equal(np.concatenate(together), next(whole)["label"])
    assert [part.get_state() for part in parts] == [whole.get_state()] * 2

    masks = [list(data.evaluation_batches(counting(), batch_size=4, multiple_of=2, part=(i, 2))) for i in range(2)]
    assert sum(batch["mask"].sum() for batches in masks for batch in batches) == counting().num_examples
    with pytest.raises(data.DataError, match="multiple of the parts"):
        data.BatchStream(counting(), batch_size=5, seed=0, part=(0, 2))
