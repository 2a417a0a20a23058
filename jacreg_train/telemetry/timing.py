"""Timing that waits for the device, keeps compilation apart, and compares fairly."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import jax


class StepClock:
    """Times a training loop. A step counts from its call until its result is there.

        clock = StepClock()
        with clock.data():
            batch = next(stream)
        with clock.step("penalised") as wait_for:
            state, metrics = wait_for(train_step(state, batch))
        writer.write(step, metrics | clock.take(batch_size))

    The first step of each kind compiles, so it goes to `compile_s` and never into a step time.
    """

    def __init__(self) -> None:
        self.compile_s = 0.0
        self._kinds_seen: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self._steps: list[float] = []
        self._data_s = 0.0
        self._batches = 0

    @contextmanager
    def data(self) -> Iterator[None]:
        """Time spent waiting for one batch."""
        start = time.perf_counter()
        yield
        self._data_s += time.perf_counter() - start
        self._batches += 1

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Time spent compiling ahead of the first step."""
        start = time.perf_counter()
        yield
        self.compile_s += time.perf_counter() - start

    @contextmanager
    def step(self, kind: str = "step") -> Iterator[Callable[[Any], Any]]:
        """One step; gives `jax.block_until_ready`, to be called on the step's result inside the block.

        Args:
            kind: names the compiled function, where a loop alternates between several.
        """
        start = time.perf_counter()
        yield jax.block_until_ready
        seconds = time.perf_counter() - start
        if kind in self._kinds_seen:
            self._steps.append(seconds)
        else:
            self._kinds_seen.add(kind)
            self.compile_s += seconds

    def take(self, batch_size: int) -> dict[str, float]:
        """The metrics since the last call; step times are missing where every step so far compiled.

        Returns:
            `time/step_ms` and `time/data_ms` (means per step), `time/examples_per_s` (of steps and data
            together), `time/compile_s` (in all, so far).
        """
        metrics = {"time/compile_s": self.compile_s}
        data_s = self._data_s / self._batches if self._batches else 0.0
        if self._batches:
            metrics["time/data_ms"] = 1e3 * data_s
        if self._steps:
            step_s = sum(self._steps) / len(self._steps)
            metrics["time/step_ms"] = 1e3 * step_s
            metrics["time/examples_per_s"] = batch_size / (step_s + data_s)
        self._forget()
        return metrics


def compare_times(thunks: Mapping[str, Callable[[], Any]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Time several functions in turns, so that a slow spell of the machine hits all of them.

    Args:
        thunks: name -> function of no arguments; its result is waited for.
        rounds: how often each is timed; every round starts with another one.
        warmup: calls of each beforehand that are not timed (the first one compiles).

    Returns:
        name -> `rounds` times in seconds, in the order of measurement.

    Raises:
        ValueError: `rounds` below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds = {rounds}: must be at least 1")
    for thunk in thunks.values():
        for _ in range(warmup):
            jax.block_until_ready(thunk())
    names = list(thunks)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            jax.block_until_ready(thunks[name]())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def time_share(with_part: list[float], without_part: list[float]) -> float:
    """The share of the time that a part takes: 1 - median without it / median with it.

    Noise can make a small share negative; it is not clipped.
    """
    return 1.0 - median(without_part) / median(with_part)
