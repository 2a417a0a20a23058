"""Checkpoints: state, data position and config, kept by number and by best accuracy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jacreg_train.training.errors import ConfigError
from jacreg_train.training.state import TrainState

FOLDER = "checkpoints"


class Checkpoints:
    """The checkpoints of one work directory; use as a context manager, which waits for writes at its end.

    Args:
      workdir: the run's folder.
      keep_latest: how many of the newest are kept.
      keep_best: how many of those with the highest test accuracy are kept beside them.
    """

    def __init__(self, workdir: Path, *, keep_latest: int, keep_best: int):
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics["accuracy"],
            n=keep_best,
            keep_checkpoints_without_metrics=False,
        )
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

    def __exit__(self, *_: Any) -> None:
        self._manager.close()

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
          config: the resolved config.
          accuracy: on the test set after this step; None where it was not evaluated.
        """
        if step in self._manager.all_steps():
            return
        meta = {"position": dict(position), "config": dict(config), "arrays": _describe(state)}
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)),
            metrics=None if accuracy is None else {"accuracy": accuracy},
            force=True,
        )

    def restore_latest(self, like: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest checkpoint's state and data position, or None where there is none.

        Args:
          like: a state whose shapes, types and placement on the devices the restored one takes.

        Raises:
          ConfigError: the checkpoint's arrays are not those of this model.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        meta = self._restore(step, meta=ocp.args.JsonRestore())["meta"]
        _check_arrays(step, meta["arrays"], _describe(like))
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return self._restore(step, state=ocp.args.StandardRestore(target))["state"], meta["position"]

    def _restore(self, step: int, **items: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**items))


def _describe(state: TrainState) -> dict[str, str]:
    """Every array's name, type and shape."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in leaves
    }


def _check_arrays(step: int, saved: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name in [*wanted, *saved]:
        if saved.get(name) != wanted.get(name):
            raise ConfigError(
                f"checkpoint {step} does not fit the model: {name} is {saved.get(name, 'missing')} there,"
                f" {wanted.get(name, 'missing')} here"
            )
