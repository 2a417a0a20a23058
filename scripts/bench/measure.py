"""Compiling, fitting and timing: everything that is compared runs in turns in one process and is waited for."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from bench import flops
from jacreg_train.telemetry import compiled_bytes
from jacreg_train.telemetry.memory import resident_bytes

MIB, GIB = 2**20, 2**30


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled function.

    Attributes:
        call: it.
        compile_s: seconds to trace, lower and compile it.
        bytes: arguments + outputs + temporaries - aliased, by the compiler; None where it does not say.
        multiply_adds: by `flops.count`; None where that is not known.
    """

    call: Callable[..., Any]
    compile_s: float
    bytes: int | None
    multiply_adds: int | None


def compile_program(fun: Callable[..., Any], *arguments: Any) -> Program:
    """Compile a function (jitted already or not) for the shapes of these arguments."""
    start = time.perf_counter()
    traced = (fun if hasattr(fun, "trace") else jax.jit(fun)).trace(*arguments)
    compiled = traced.lower().compile()
    seconds = time.perf_counter() - start
    try:
        counted = flops.count(traced.jaxpr)
    except ValueError:
        counted = None
    return Program(compiled, seconds, compiled_bytes(compiled), counted)


def compile_seconds(fun: Callable[..., Any], *arguments: Any, rounds: int = 1) -> float:
    """The least of some times to trace, lower and compile; what jax keeps is thrown away between them."""
    seconds = []
    for _ in range(rounds):
        jax.clear_caches()
        # A new function each time: jax keeps traces by function.
        seconds.append(compile_program(lambda *arguments: fun(*arguments), *arguments).compile_s)
    return min(seconds)


def time_in_turns(
    calls: Mapping[str, Callable[[int], Any]],
    rounds: int,
    patience_s: float,
    look: Callable[[str, Any], None] = lambda name, result: None,
) -> dict[str, list[float]]:
    """Seconds of each call, waited for, in turns; every round starts with another one.

    Args:
        calls: name -> function of the number of the call.
        rounds: timed calls of each, after one that warms up.
        patience_s: what takes longer in its first call is not called again: that one call counts.
        look: sees every result, off the clock.
    """

    def once(name: str, turn: int) -> float:
        start = time.perf_counter()
        result = jax.block_until_ready(calls[name](turn))
        seconds = time.perf_counter() - start
        look(name, result)
        return seconds

    first = {name: once(name, 0) for name in calls}
    seconds: dict[str, list[float]] = {name: [first[name]] if first[name] > patience_s else [] for name in calls}
    names = [name for name in calls if not seconds[name]]
    for turn in range(rounds):
        start = turn % len(names) if names else 0
        for name in names[start:] + names[:start]:
            seconds[name].append(once(name, 1 + turn))
    return seconds


def ratios(seconds: list[float], base: list[float]) -> list[float]:
    """Round by round where both have as many rounds, otherwise over the base's median."""
    if len(seconds) == len(base):
        return [a / b for a, b in zip(seconds, base, strict=True)]
    return [a / median(base) for a in seconds]


def time_fields(seconds: list[float], base: list[float]) -> dict[str, Any]:
    """A row's fields on time: median ratio, its spread, median seconds, number of timed calls."""
    found = ratios(seconds, base)
    return {
        "time_ratio": median(found),
        "time_low": min(found),
        "time_high": max(found),
        "seconds": median(seconds),
        "rounds": len(seconds),
    }


@jax.jit
def relative_error(tree: Any, reference: Any) -> jax.Array:
    """`|tree - reference| / |reference|`, over all entries."""
    total = lambda tree: sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))
    difference = jax.tree.map(lambda a, b: a - b, tree, reference)
    return jnp.sqrt(total(difference) / total(reference))


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that tells the peak so far, in bytes above what was in use before.

    Sampled every 50 ms: the memory in use on a device that tells, elsewhere the process's resident memory.
    """
    before = _bytes_in_use()
    peak, stop = [before], threading.Event()

    def sample() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], _bytes_in_use())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda: max(peak[0], _bytes_in_use()) - before
    finally:
        stop.set()
        thread.join()


def _bytes_in_use() -> int:
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_in_use") or resident_bytes()


def memory_budget(gib: float | None) -> int:
    """Bytes that a program may need: as given, or half of the machine's memory, 0.9 of a device's own."""
    if gib is not None:
        return int(gib * GIB)
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return int(0.9 * limit) if limit else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
