"""The batches of a training step: the training set's, and those of the context set where there is one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jacreg_train.data import BatchStream, Dataset
from jacreg_train.training.devices import Devices

StepBatch = tuple[Any, Any]  # ({"image", "label"}, context images or None), on the devices


class Batches:
    """Endless step batches; their position is part of a checkpoint.

    Args:
      train_data: the training set, ``batch_size`` examples a step.
      context_data: None, or the set of the penalty's points, ``num_points`` a step.
      devices: where batches go.
      seed: of the orders; both sets have their own.
    """

    def __init__(
        self,
        train_data: Dataset,
        context_data: Dataset | None,
        *,
        batch_size: int,
        num_points: int,
        devices: Devices,
        seed: int,
    ):
        self._devices = devices
        train = BatchStream(train_data, batch_size=batch_size, seed=seed, part=devices.part, place=devices.put_batch)
        self._streams = {"train": train}
        if context_data is not None:
            self._streams["context"] = BatchStream(
                context_data,
                batch_size=num_points,
                seed=seed + 1,
                part=devices.part,
                place=lambda batch: devices.put_batch(batch["image"]),
            )
        of_part = lambda size: np.arange(size // devices.part[1])
        self._example = (
            train_data.read(of_part(batch_size)),
            None if context_data is None else context_data.read(of_part(num_points))["image"],
        )

    @property
    def epoch(self) -> float:
        """Passes over the training set, fractions included."""
        return self._streams["train"].epoch

    def next(self) -> StepBatch:
        """The next batch on the devices, of which each process reads its part."""
        context = next(self._streams["context"]) if "context" in self._streams else None
        return next(self._streams["train"]), context

    def read_ahead(self) -> None:
        """Begin to read the next batch and to bring it to the devices, in threads."""
        for stream in self._streams.values():
            stream.read_ahead()

    def example(self) -> StepBatch:
        """A batch of the same shapes, outside the streams: for compiling and timing."""
        return self._devices.put_batch(self._example)

    def get_state(self) -> dict[str, dict[str, int]]:
        """The position after the last ``next``."""
        return {name: stream.get_state() for name, stream in self._streams.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position; raises DataError where the streams differ from those that gave it."""
        for name, stream in self._streams.items():
            stream.set_state(dict(state[name]))
