"""Memory figures, in bytes. Each kind of figure has a name of its own: they are not comparable."""

import os
import subprocess
from typing import Any

import jax


def compiled_bytes(compiled: Any) -> int | None:
    """What a compiled step holds at most: arguments + outputs + temporaries - outputs that reuse arguments.

    Args:
        compiled: the result of `jax.jit(f).lower(...).compile()`.

    Returns:
        Bytes per device, or None where the backend gives no analysis. The compiler's own `peak` is not used
        because it leaves temporaries out; on CPU the temporaries of a simple product chain can read 0.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
    )


def device_peak_bytes() -> int | None:
    """The largest peak over this process's devices so far, or None where devices don't tell (CPU)."""
    statistics = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in statistics if "peak_bytes_in_use" in each]
    return max(peaks, default=None)


def resident_bytes() -> int:
    """The memory of this process that is resident now (not its peak, not its children)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # no /proc: any other POSIX system
        kibibytes = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True
        ).stdout
        return int(kibibytes) * 1024
