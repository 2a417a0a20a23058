"""Several processes that train one model: how they meet, who writes, and what they agree on.

Every process runs the same program on its own devices and reads its own part of each batch.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jacreg_train.training.errors import ConfigError


def connect(
    *, coordinator_address: str | None, num_processes: int | None, process_id: int | None, distributed: bool
) -> None:
    """Join the other processes; before any device is used. Without arguments the process stays alone.

    Args:
      coordinator_address: host:port of the first process.
      num_processes: how many take part.
      process_id: which one this is, from 0.
      distributed: let JAX read all three from the cluster's environment (SLURM, Open MPI, Cloud TPU, ...).

    Raises:
      ConfigError: flags that don't fit together, or a cluster that cannot be told.
    """
    given = {
        "coordinator_address": coordinator_address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if distributed:
        if len(missing) < 3:
            name, value = next((name, value) for name, value in given.items() if value is not None)
            raise ConfigError(f"--{name}={value} has no meaning with --distributed; give one of them")
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as error:
            raise ConfigError(
                f"--distributed: no cluster is recognised ({' '.join(str(error).split())}); give"
                " --coordinator_address, --num_processes and --process_id"
            ) from None
        return
    if len(missing) == 3:
        return
    if missing:
        raise ConfigError(
            f"--{missing[0]} is missing; several processes need {', '.join('--' + name for name in given)}"
        )
    assert num_processes is not None
    assert process_id is not None
    if num_processes < 1:
        raise ConfigError(f"--num_processes={num_processes}: choose 1 or more")
    if not 0 <= process_id < num_processes:
        raise ConfigError(f"--process_id={process_id}: choose from 0 to {num_processes - 1}")
    if ":" not in str(coordinator_address):
        raise ConfigError(f"--coordinator_address={coordinator_address}: choose host:port")
    jax.distributed.initialize(
        coordinator_address=coordinator_address, num_processes=num_processes, process_id=process_id
    )


def is_first() -> bool:
    """Whether this process writes the logs."""
    return jax.process_index() == 0


def done_by_first(action: Callable[[], Any]) -> None:
    """The first process acts; all go on when it has."""
    if is_first():
        action()
    wait_for_all("the first process")


def wait_for_all(name: str) -> None:
    """Returns when every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def largest_of_all(number: int) -> int:
    """The largest of the numbers that the processes give; all must call."""
    if jax.process_count() == 1:
        return number
    return int(np.max(multihost_utils.process_allgather(np.int32(number))))
