"""Out of memory: found before the first step where it can be, and answered with the flag that helps."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from jacreg_train.jacobian.memory import free_bytes
from jacreg_train.training.errors import OutOfMemory

SIGNS = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")


@contextlib.contextmanager
def answered_with_the_flag(config: ConfigDict) -> Iterator[None]:
    """Raises OutOfMemory, which names the flag to change, where an allocation inside fails."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(sign in str(error) for sign in SIGNS):
            raise
        reason = " ".join(str(error).split("\n")[0].split())[:200]
        told = f" ({reason})" if reason else ""
        raise OutOfMemory(f"out of memory{told}; {way_out(config)}") from error


def check_fits(needed: int | None, config: ConfigDict) -> None:
    """Refuse a step that would get the process killed.

    Args:
      needed: bytes that the compiled step holds on one device, its state and batch included.
      config: for the way out.

    Raises:
      OutOfMemory: more than is free. What the state holds already counts twice, so this is on the lenient side
        by that much only where memory is nearly full anyway.
    """
    free = free_bytes()
    if needed is not None and free is not None and needed > free:
        raise OutOfMemory(
            f"the step needs {needed / 2**30:.3g} GiB a device and {free / 2**30:.3g} GiB are free; {way_out(config)}"
        )


def check_state_fits(state: Any, config: ConfigDict) -> None:
    """Refuse a network that does not fit whatever the step does; before anything compiles.

    Args:
      state: the training state, or the shapes and types of it.
      config: for the number of devices that share it.

    Raises:
      OutOfMemory: parameters, the optimiser's state and running statistics need more than is free.
    """
    leaves = [leaf for leaf in jax.tree.leaves(state) if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)]
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) / config.mesh.model
    free = free_bytes()
    if free is not None and needed > free:
        raise OutOfMemory(
            f"config.model.{config.model.name}: parameters and the optimiser's state need {needed / 2**30:.3g} GiB a"
            f" device and {free / 2**30:.3g} GiB are free; choose a smaller network, or more devices with a larger"
            " --config.mesh.model"
        )


def way_out(config: ConfigDict) -> str:
    """What to change for a step that takes less memory, as a flag."""
    core = config.jacobian
    devices = jax.device_count() // config.mesh.model  # that share a batch
    if core.weight == 0:
        return _fewer_examples(config, devices)
    if core.estimator.name == "auto":
        budget = core.estimator.memory_budget_gib or (free_bytes() or 2**30) / 2**30
        return f"try --config.jacobian.estimator.memory_budget_gib={budget / 2:.3g}"
    if core.estimator.name == "exact":
        return "try --config.jacobian.estimator.name=layerwise"
    chunk = core.estimator.example_chunk or (core.batch_size or config.batch_size) // devices
    if chunk > 1:
        return f"try --config.jacobian.estimator.example_chunk={chunk // 2}"
    if core.estimator.output_chunk != 1:
        return "try --config.jacobian.estimator.output_chunk=1"
    return _fewer_examples(config, devices)


def _fewer_examples(config: ConfigDict, devices: int) -> str:
    """Half the batch; the network over more devices where each has one example already."""
    examples = config.batch_size // devices
    if examples > 1:
        return f"try --config.batch_size={examples // 2 * devices}"
    model = 2 * config.mesh.model
    return f"try --config.mesh.model={model}, on a multiple of {model} devices"
