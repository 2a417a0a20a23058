"""Batches out of a data set: an endless shuffled stream for training, one ordered pass for evaluation.

A stream's position is one integer, and batch ``t`` is a function of (seed, t) alone. So a checkpoint holds
a handful of integers and a resumed run sees the same examples, without any state of a loader's workers.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from jacreg_train.data.dataset import Batch, DataError, Dataset, check_integer


def epoch_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """The permutation of ``num_examples`` of one epoch: int ``[num_examples]``.

    Sorts raw Philox bits, since NumPy promises those, and not ``Generator.permutation``, across its versions.
    """
    bits = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(num_examples)
    return np.argsort(bits, kind="stable")


class BatchStream:
    """Endless shuffled batches, every example once per epoch; ``next(stream)`` gives one.

    Batches follow one another without regard to epochs: the one that reaches the end of a permutation goes
    on in the next, so nothing is dropped and every batch is full. After ``read_ahead`` a thread reads the next batch
    while the caller computes.

    Args:
        dataset: what to read.
        batch_size: examples in a batch, at most ``dataset.num_examples``.
        seed: decides all permutations.
        part: (which, of how many): only this one of so many equal parts of each batch is read, for one of several
            processes. The position is the whole batches'.
        place: what becomes of a batch, in the thread: its way to the devices, say.

    Raises:
        DataError: a batch size that is not in ``[1, num_examples]`` or no multiple of the parts, or a negative seed.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        seed: int,
        part: tuple[int, int] = (0, 1),
        place: Callable[[Batch], Any] = lambda batch: batch,
    ):
        check_integer("batch_size", batch_size, minimum=1)
        check_integer("seed", seed, minimum=0)
        if batch_size > dataset.num_examples:
            raise DataError(
                f"batch_size {batch_size} is larger than data set {dataset.name!r}: choose at most"
                f" {dataset.num_examples}"
            )
        self._dataset, self._batch_size, self._seed = dataset, int(batch_size), int(seed)
        self._part, self._place = _part_of(batch_size, part), place
        self._position = 0
        self._order = functools.lru_cache(maxsize=2)(lambda epoch: epoch_order(self._seed, epoch, dataset.num_examples))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="batch-stream")
        self._ahead: dict[int, Future[Any]] = {}

    def __iter__(self) -> "BatchStream":
        return self

    def __next__(self) -> Any:
        batch = self._request(self._position).result()
        self._position += 1
        self._ahead = {}
        return batch

    def read_ahead(self) -> None:
        """Begin to read the next batch; returns at once. It fails, if so, when that batch is taken."""
        self._ahead = {self._position: self._request(self._position)}

    @property
    def epoch(self) -> float:
        """Passes over the data so far, fractions included: examples handed out over ``num_examples``."""
        return self._position * self._batch_size / self._dataset.num_examples

    def get_state(self) -> dict[str, int]:
        """The position, as integers: batches handed out, and what the order depends on."""
        return {"position": self._position, **self._identity()}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes to the position of ``get_state``.

        Raises:
            DataError: the state is of another seed, batch size or data set size, so the order would differ.
        """
        if set(state) != set(self.get_state()):
            raise DataError(f"stream state has fields {sorted(state)}, needs {sorted(self.get_state())}")
        for field, value in self._identity().items():
            if state[field] != value:
                raise DataError(f"stream state has {field} {state[field]!r}, this stream has {value}")
        self._position = check_integer("position", state["position"], minimum=0)
        self._ahead = {}

    def indices(self, position: int) -> np.ndarray:
        """Indices of batch ``position``: int ``[batch_size]``."""
        examples = np.arange(position * self._batch_size, (position + 1) * self._batch_size)
        epochs, places = np.divmod(examples, self._dataset.num_examples)
        return np.concatenate([self._order(int(e))[places[epochs == e]] for e in np.unique(epochs)])

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self._seed,
            "batch_size": self._batch_size,
            "num_examples": self._dataset.num_examples,
        }

    def _request(self, position: int) -> "Future[Any]":
        if position in self._ahead:
            return self._ahead[position]
        return self._worker.submit(lambda: self._place(self._dataset.read(self.indices(position)[self._part])))


def evaluation_batches(
    dataset: Dataset, *, batch_size: int, multiple_of: int = 1, part: tuple[int, int] = (0, 1)
) -> Iterator[Batch]:
    """Every example once, in order, in batches of one size, so that one compiled step serves all.

    Args:
        dataset: what to read.
        batch_size: examples in a batch; a smaller data set makes smaller batches.
        multiple_of: batches are rounded up to a multiple of this, the number of devices.
        part: (which, of how many): only this one of so many equal parts of each batch is read.

    Returns:
        Iterator of ``{"image": uint8 [b, H, W, C], "label": int32 [b], "mask": float32 [b]}``. The last batch
        is padded with copies of its first example; their mask is 0, all others' is 1. The masks sum to
        ``num_examples``, over all parts.

    Raises:
        DataError: ``batch_size`` or ``multiple_of`` is no positive integer, or a batch has no such parts.
    """
    check_integer("batch_size", batch_size, minimum=1)
    check_integer("multiple_of", multiple_of, minimum=1)
    size = -(-min(batch_size, dataset.num_examples) // multiple_of) * multiple_of
    rows = _part_of(size, part)
    return (_padded_batch(dataset, start=start, size=size, rows=rows) for start in range(0, dataset.num_examples, size))


def _part_of(size: int, part: tuple[int, int]) -> slice:
    """The rows of one of several equal parts."""
    index, count = part
    if not 0 <= index < count or size % count:
        raise DataError(f"part {part} of a batch of {size}: choose a batch size that is a multiple of the parts")
    return slice(index * size // count, (index + 1) * size // count)


def _padded_batch(dataset: Dataset, *, start: int, size: int, rows: slice) -> Batch:
    indices = np.arange(start, start + size)[rows]
    mask = indices < dataset.num_examples
    return {**dataset.read(np.where(mask, indices, start)), "mask": mask.astype(np.float32)}
