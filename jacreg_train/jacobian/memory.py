"""What a compiled program needs and what is free, in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

HEADROOM = 0.9  # of what is free: allocators fragment, and the rest of a program needs some


def held_bytes(compiled: Any) -> int | None:
    """Arguments, outputs and temporaries of a compiled program on one device; None where the backend won't tell."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    whole = analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes
    return whole - analysis.alias_size_in_bytes


def free_bytes() -> int | None:
    """What one device has free; None where neither device nor machine tells.

    A CPU's devices share the machine's memory, or the container's where that is less, in equal parts.
    """
    device = jax.local_devices()[0]
    statistics = device.memory_stats() or {}
    if "bytes_limit" in statistics:
        return int(HEADROOM * (statistics["bytes_limit"] - statistics["bytes_in_use"]))
    bounds = [bound for bound in (_free_on_machine(), _free_in_container()) if bound is not None]
    return int(HEADROOM * min(bounds) / jax.local_device_count()) if bounds else None


def _free_on_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _free_in_container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        # Pages of files count as used, but are given back on demand.
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - int(used) + int(statistics.get("file", 0)), 0)
