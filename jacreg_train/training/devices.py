"""How a function of one device's share of a batch runs on all devices, which form a mesh of two axes.

Both ways run the same per-device function, in which collectives over the data axis ``AXIS`` join the devices,
so they give the same numbers. Batches are split along their first axis over the data axis. The state is the
same along it; along the model axis its large arrays are split, and the compiler divides the work on them.
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
MODEL_AXIS = "model"
# Initialisation runs once; optimising its random numbers takes the CPU compiler several times as long.
INIT_OPTIONS = {"xla_backend_optimization_level": 1}


@dataclasses.dataclass(frozen=True)
class Devices:
    """A set of devices that train one model.

    Attributes:
      count: number of devices along the data axis, those of other processes included.
      part: (which, of how many): the part of each batch that this process reads, one after the other.
      put_batch: host arrays, this process's part of ``[n, ...]``, -> device arrays split along n, in the layout
        that ``map`` expects.
      make: ``make(function)`` -> the pytree that a traceable function of no arguments returns, made where it is
        to lie: no device ever holds more of it than its part.
      map: ``map(function, num_batches=b, donate=False)`` -> a compilable ``(state, *b batches) ->
        results``, where function sees its device's share ``[n / count, ...]`` of each batch and returns the
        same on every device of the data axis. ``donate`` lets the results take the state's memory.
    """

    count: int
    part: tuple[int, int]
    put_batch: Callable[[Any], Any]
    make: Callable[[Callable[[], Any]], Any]
    map: Callable[..., Any]


def make_mesh(devices: list[jax.Device] | None = None, *, model: int = 1) -> Mesh:
    """A mesh over all devices, or over those given: ``model`` of them share an array, the rest is the data axis."""
    devices = jax.devices() if devices is None else devices
    shape = (len(devices) // model, model)
    return jax.make_mesh(shape, (AXIS, MODEL_AXIS), axis_types=(AxisType.Auto, AxisType.Auto), devices=devices)


def is_split(shape: tuple[int, ...], parts: int) -> bool:
    """Whether an array is split over the model axis: along its last axis, a layer's outputs, where that divides.

    Vectors and scalars stay whole; together they hold little. No other axis is taken: a dense layer split along its
    inputs, behind a convolution, makes the compiler split the image's positions, where XLA gives wrong numbers
    (jax 0.10.2, at stride 2).
    """
    return parts > 1 and len(shape) > 1 and shape[-1] > 0 and shape[-1] % parts == 0


def jit_devices(mesh: Mesh) -> Devices:
    """``jax.jit`` of a ``shard_map`` over the mesh's data axis; the model axis is the compiler's."""

    def map_(function, *, num_batches: int, donate: bool = False):
        # The per-device function sums over devices itself, as pmap's does; replication is not tracked by
        # types.
        sharded = jax.shard_map(
            function,
            mesh=mesh,
            in_specs=(P(), *[P(AXIS)] * num_batches),
            out_specs=P(),
            axis_names={AXIS},
            check_vma=False,
        )

        def placed(*arguments):
            """Results lie as the state does, whatever the compiler would like."""
            results = sharded(*arguments)
            return jax.tree.map(jax.lax.with_sharding_constraint, results, _shardings(mesh, results))

        # Where no array is split there is nothing to say, and saying it would cost a copy of the state.
        split = mesh.shape[MODEL_AXIS] > 1
        return jax.jit(placed if split else sharded, donate_argnums=0 if donate else ())

    def put_batch(batch):
        return jax.tree.map(
            lambda x: jax.make_array_from_process_local_data(NamedSharding(mesh, P(AXIS)), np.asarray(x)),
            batch,
        )

    part = (jax.process_index(), jax.process_count())
    return Devices(mesh.shape[AXIS], part, put_batch, _maker(mesh), map_)


def pmap_devices(mesh: Mesh) -> Devices:
    """``jax.pmap`` in one process, without a model axis; batches carry a leading axis of devices."""

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

    return Devices(mesh.size, (0, 1), put_batch, _maker(mesh), map_)


def sum_over_devices(tree: Any) -> Any:
    """The sum of each array over the data axis; inside a function that ``Devices.map`` runs."""
    return tree if joined_axis() is None else jax.lax.psum(tree, AXIS)


def joined_axis() -> str | None:
    """The data axis where it joins several devices, else None; inside a function that ``Devices.map`` runs.

    A sum over one device would be no work, but beside a model axis XLA's partitioner fails on it (jax 0.10.2).
    """
    return AXIS if jax.lax.axis_size(AXIS) > 1 else None


def _shardings(mesh: Mesh, tree: Any) -> Any:
    """Where each array of a tree lies: a matter of its shape alone, so a result lies where its argument did."""

    def sharding(leaf: Any) -> NamedSharding:
        split = is_split(leaf.shape, mesh.shape[MODEL_AXIS])
        return NamedSharding(mesh, P(*[None] * (len(leaf.shape) - 1), MODEL_AXIS) if split else P())

    return jax.tree.map(sharding, tree)


def _maker(mesh: Mesh) -> Callable[[Callable[[], Any]], Any]:
    def make(function: Callable[[], Any]) -> Any:
        shardings = _shardings(mesh, jax.eval_shape(function))
        return jax.jit(function, out_shardings=shardings, compiler_options=INIT_OPTIONS)()

    return make


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
