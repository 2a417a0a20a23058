"""Data parallelism: how a function of one device's share of a batch runs on all devices.

Both ways run the same per-device function, in which collectives over the axis ``AXIS`` join the devices, so
they give the same numbers. The state is replicated; batches are split along their first axis.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "data"


@dataclasses.dataclass(frozen=True)
class Devices:
    """A data-parallel set of devices.

    Attributes:
      count: number of devices along the data axis, those of other processes included.
      part: (which, of how many): the part of each batch that this process reads, one after the other.
      put_batch: host arrays, this process's part of ``[n, ...]``, -> device arrays split along n, in the layout
        that ``map`` expects.
      put_replicated: a pytree -> the same on every device.
      map: ``map(function, num_batches=b, donate=False)`` -> a compilable ``(state, *b batches) ->
        results``, where function sees its device's share ``[n / count, ...]`` of each batch and returns the
        same on every device. ``donate`` lets the results take the state's memory.
    """

    count: int
    part: tuple[int, int]
    put_batch: Callable[[Any], Any]
    put_replicated: Callable[[Any], Any]
    map: Callable[..., Any]


def make_mesh(devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh with the data axis over all devices, or over those given."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def jit_devices(mesh: Mesh) -> Devices:
    """``jax.jit`` of a ``shard_map`` over the mesh's data axis."""

    def map_(function, *, num_batches: int, donate: bool = False):
        # The per-device function sums over devices itself, as pmap's does; replication is not tracked by
        # types.
        sharded = jax.shard_map(
            function, mesh=mesh, in_specs=(P(), *[P(AXIS)] * num_batches), out_specs=P(), check_vma=False
        )
        return jax.jit(sharded, donate_argnums=0 if donate else ())

    def put_batch(batch):
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(NamedSharding(mesh, P(AXIS)), np.asarray(x)),
            batch,
        )

    part = (jax.process_index(), jax.process_count())
    return Devices(mesh.size, part, put_batch, _replicate(mesh), map_)


def pmap_devices(mesh: Mesh) -> Devices:
    """``jax.pmap`` in one process; batches carry a leading axis of devices."""

    def map_(function, *, num_batches: int, donate: bool = False):
        return jax.pmap(
            function,
            axis_name=AXIS,
            in_axes=(None, *[0] * num_batches),
            out_axes=None,
            devices=list(mesh.devices.flat),
            donate_argnums=0 if donate else (),
        )

    def put_batch(batch):
        def put(x):
            x = np.asarray(x)
            x = x.reshape(mesh.size, len(x) // mesh.size, *x.shape[1:])
            return jax.device_put(x, NamedSharding(mesh, P(AXIS)))

        return jax.tree.map(put, batch)

    return Devices(mesh.size, (0, 1), put_batch, _replicate(mesh), map_)


def _replicate(mesh: Mesh) -> Callable[[Any], Any]:
    replicated = NamedSharding(mesh, P())

    def put(leaf: Any) -> jax.Array:
        """Devices of other processes are not put to: each process lays out its own, with the same numbers."""
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, replicated, lambda index: value[index])

    if jax.process_count() > 1:
        return lambda tree: jax.tree.map(put, tree)
    return lambda tree: jax.device_put(tree, replicated)


PARALLEL: dict[str, Callable[[Mesh], Devices]] = {"jit": jit_devices, "pmap": pmap_devices}


def start_up(*, compilation_cache: str, workdir: Path) -> None:
    """What a process sets before it first uses a device: where compiled programs are kept between runs.

    Args:
      compilation_cache: "auto" (``.jax_cache`` beside the workdir), "off", or a folder.
      workdir: the run's folder.
    """
    if compilation_cache == "off":
        return
    folder = workdir.absolute().parent / ".jax_cache" if compilation_cache == "auto" else Path(compilation_cache)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
