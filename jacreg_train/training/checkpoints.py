"""Checkpoints: state, data position and config, kept by number and by best accuracy.

Every array has a checksum in the checkpoint, and so has the rest: the format itself does not notice a
changed bit in an array. A damaged checkpoint is put aside, never deleted, and the one before it is used.

A thread writes, so that a disk that is slow or does not answer never holds up the training: only the copy of the
state to the host is waited for. Where several processes train, the threads are Orbax's, which write together.
"""

import contextlib
import functools
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jacreg_train.telemetry import Background, redact
from jacreg_train.training.errors import ConfigError, Interrupted, WorkdirError
from jacreg_train.training.processes import done_by_first, largest_of_all
from jacreg_train.training.state import TrainState

FOLDER, DAMAGED_FOLDER = "checkpoints", "damaged_checkpoints"
POLL_S = 0.01

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one work directory; use as a context manager, which waits for writes at its end.

    Args:
      workdir: the run's folder.
      keep_latest: how many of the newest are kept.
      keep_best: how many of those with the highest test accuracy are kept beside them.
      check_workdir: called before each write; what it raises is raised by the next call here.

    Raises:
      ConfigError: the folder of the checkpoints cannot be made.
    """

    def __init__(
        self, workdir: Path, *, keep_latest: int, keep_best: int, check_workdir: Callable[[], None] = lambda: None
    ):
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics["accuracy"],
            n=keep_best,
            keep_checkpoints_without_metrics=False,
        )
        try:
            (workdir / FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--workdir={workdir}: its {FOLDER} cannot be written ({error.strerror})") from None
        self._workdir = workdir
        self._check_workdir = check_workdir
        self._background = Background("checkpoints") if jax.process_count() == 1 else None
        self._manager = ocp.CheckpointManager(
            (workdir / FOLDER).absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep_latest), best]),
                cleanup_tmp_directories=True,  # left by a process that was killed while it wrote
            ),
            item_names=("state", "meta"),
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            try:
                if self._background is not None:
                    self._background.close()
            finally:
                self._manager.close()
        except Exception as error:
            if kind is None or issubclass(kind, Interrupted):  # of two failures the first is told
                raise self._write_error(error) from error

    def save(
        self,
        state: TrainState,
        *,
        step: int,
        position: Mapping[str, Any],
        config: Mapping[str, Any],
        accuracy: float | None,
    ) -> None:
        """Write a checkpoint beside the training; one that is there already is left as it is.

        Args:
          state: copied to the host before this returns, so its memory can be donated.
          step: steps done.
          position: of the data streams after those steps.
          config: the resolved config; secrets are left out.
          accuracy: on the test set after this step; None where it was not evaluated.

        Raises:
          WorkdirError: this checkpoint or the one before could not be written.
        """
        meta: dict[str, Any] = {"position": dict(position), "config": redact(dict(config)), "arrays": _describe(state)}
        metrics = None if accuracy is None else {"accuracy": accuracy}
        if self._background is None:
            with self._failures_named():
                self._write(state, step, meta, metrics)
            return
        copy = _copied(state)
        self.wait(0)
        self._background.submit(lambda: self._write(copy, step, meta, metrics))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether all checkpoints are written, after waiting for them so long; None: until they are.

        Raises:
          WorkdirError: one could not be written.
        """
        with self._failures_named():
            if self._background is not None:
                return self._background.wait(timeout_s)
            start = time.monotonic()
            while saving := self._manager.is_saving_in_progress():
                if timeout_s is not None and time.monotonic() - start >= timeout_s:
                    break
                time.sleep(POLL_S)
            if not saving:
                self._manager.wait_until_finished()  # raises what the writing threads raised
            self._manager.check_for_errors()
            return not saving

    def _write(self, state: TrainState, step: int, meta: dict[str, Any], metrics: dict[str, float] | None) -> None:
        self._check_workdir()
        if step in self._manager.all_steps():
            return
        meta["array_checksums"] = _checksums(state)
        meta["checksum"] = _checksum_of_json(meta)
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)),
            metrics=metrics,
            force=True,
        )
        if self._background is not None:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def restore_latest(self, like: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest whole checkpoint's state and data position, or None where there are no checkpoints.

        Damaged ones that are newer are named in a warning and moved to the folder ``damaged_checkpoints``.

        Args:
          like: a state whose shapes, types and placement on the devices the restored one takes.

        Raises:
          ConfigError: the checkpoint's arrays are not those of this model, or every checkpoint is damaged.
          WorkdirError: a damaged one cannot be moved.
        """
        damaged: dict[int, str] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            restored, reason = self._restore_or_reason(step, like)
            if largest_of_all(int(restored is None)):  # all take the same one
                damaged[step] = reason or "another process cannot read it"
                continue
            if damaged:
                done_by_first(functools.partial(self._put_aside, damaged, used=step))
                self._manager.reload()
            return restored
        if damaged:
            step, reason = next(iter(damaged.items()))
            raise ConfigError(
                f"--workdir={self._workdir}: no checkpoint of {', '.join(map(str, damaged))} is whole"
                f" ({step}: {reason}); restore one, or choose another folder to start again"
            )
        return None

    def _restore_or_reason(
        self, step: int, like: TrainState
    ) -> tuple[tuple[TrainState, dict[str, Any]] | None, str | None]:
        try:
            return self._restore_whole(step, like), None
        except ConfigError:
            raise
        except Exception as error:  # of many kinds, by the file that is damaged
            return None, f"{type(error).__name__}: {_one_line(error)}"

    def _restore_whole(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        meta = self._restore(step, meta=ocp.args.JsonRestore())["meta"]
        if meta.pop("checksum", None) != _checksum_of_json(meta):
            raise ValueError("its meta data do not have their checksum")
        _check_arrays(step, meta["arrays"], _describe(like))
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        state = self._restore(step, state=ocp.args.StandardRestore(target))["state"]
        for name, checksum in _checksums(state).items():
            if meta["array_checksums"][name] != checksum:
                raise ValueError(f"{name} does not have its checksum")
        return state, meta["position"]

    def _put_aside(self, damaged: Mapping[int, str], *, used: int) -> None:
        for step, reason in damaged.items():
            _logger.warning("checkpoint %d is damaged (%s); going on from checkpoint %d", step, reason, used)
            aside = self._workdir / DAMAGED_FOLDER
            try:
                aside.mkdir(exist_ok=True)
                number = len(list(aside.glob(f"{step}*")))
                (self._workdir / FOLDER / str(step)).rename(aside / (f"{step}_{number}" if number else str(step)))
            except OSError as error:
                raise WorkdirError(
                    f"--workdir={self._workdir}: damaged checkpoint {step} cannot be moved ({error})"
                ) from error

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of many kinds, by the layer that could not write
            raise self._write_error(error) from error

    def _write_error(self, error: Exception) -> WorkdirError:
        if isinstance(error, WorkdirError):
            return error
        return WorkdirError(f"--workdir={self._workdir}: a checkpoint cannot be written ({_one_line(error)})")

    def _restore(self, step: int, **items: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**items))


def _copied(state: TrainState) -> TrainState:
    """The state on the host, so that its memory on the device can be donated; keys, which are small, stay there."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if _is_key(leaf) else np.array(leaf), state)


def _is_key(leaf: jax.Array) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe(state: TrainState) -> dict[str, str]:
    """Every array's name, type and shape."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in leaves
    }


def _checksums(state: TrainState) -> dict[str, int]:
    """Every array's CRC-32. The state is copied to the host for it, which a checkpoint does anyway."""
    return {name: zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for name, leaf in _on_host(state)}


def _on_host(state: TrainState) -> list[tuple[str, np.ndarray]]:
    plain = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)
    leaves, _ = jax.tree_util.tree_flatten_with_path(plain)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), _whole(leaf)) for path, leaf in leaves]


def _whole(leaf: Any) -> np.ndarray:
    """The array in whole; of several processes each holds all parts of one that is split."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated or leaf.is_fully_addressable:
        return np.asarray(leaf)
    whole = np.empty(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        whole[shard.index] = shard.data
    return whole


def _checksum_of_json(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_arrays(step: int, saved: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name in [*wanted, *saved]:
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"checkpoint {step} does not fit the model: {name} is {saved.get(name, 'missing')} there,"
                f" {wanted.get(name, 'missing')} here"
            )
