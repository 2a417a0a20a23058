"""A run's folder: one run at a time, and always the same config."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jacreg_train.telemetry import read_config, redact
from jacreg_train.telemetry.run_record import CONFIG_FILE
from jacreg_train.training.errors import ConfigError, WorkdirError

# Fields that can differ between the parts of one run, since they don't change what it computes (memory
# options and parallelism: not beyond rounding). A run may get longer, too, unless its schedule depends on
# the length.
FREE_FIELDS = (
    "num_steps",
    "num_epochs",
    "parallel",
    "mesh.",
    "on_nonfinite",
    "compilation_cache",
    "dataset.data_dir",
    "jacobian.context.data_dir",
    "jacobian.estimator.example_chunk",
    "jacobian.estimator.output_chunk",
    "jacobian.estimator.memory_budget_gib",
    "evaluation.every_steps",
    "evaluation.batch_size",
    "checkpoint.",
    "log.",
    "wandb.",
)

GLOB_CHARACTERS = frozenset("*?[")  # Orbax looks for the parts of a checkpoint by patterns


class Lock(NamedTuple):
    """A held lock.

    Attributes:
      check: raises WorkdirError once the folder is gone, or another one is in its place.
      after_a_kill: whether the run that held it before was killed: for memory, say.
    """

    check: Callable[[], None]
    after_a_kill: bool


@contextlib.contextmanager
def locked(workdir: Path, name: str = ".lock") -> Iterator[Lock]:
    """Hold the folder's lock, which the system drops when the process ends, however it ends.

    While it is held its file has one byte, a hole that takes no space; a file left so tells of a kill.

    Raises:
      ConfigError: the folder cannot be written, another run holds it, or checkpoints cannot lie there.
    """
    if set(str(workdir.absolute())) & GLOB_CHARACTERS:
        raise ConfigError(
            f"--workdir={workdir}: the path {workdir.absolute()} has one of {' '.join(sorted(GLOB_CHARACTERS))}, where"
            " checkpoints would not be whole; choose another"
        )
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        file = open(workdir / name, "a")  # noqa: SIM115 - held open below
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: cannot be written ({error.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--workdir={workdir}: another run is writing to it; choose another") from None

        def check() -> None:
            try:
                there = os.path.samestat(os.stat(workdir / name), os.fstat(file.fileno()))
            except OSError:
                there = False
            if not there:
                raise WorkdirError(f"--workdir={workdir}: the folder was removed or replaced during the run")

        after_a_kill = os.fstat(file.fileno()).st_size > 0
        with failures_named(workdir, "the lock's file cannot be written"):
            file.truncate(1)
        try:
            yield Lock(check, after_a_kill)
        finally:
            with contextlib.suppress(OSError):
                file.truncate(0)


@contextlib.contextmanager
def failures_named(workdir: Path, what: str) -> Iterator[None]:
    """An OSError inside becomes a WorkdirError that says what failed."""
    try:
        yield
    except OSError as error:
        raise WorkdirError(f"--workdir={workdir}: {what} ({error.strerror or error})") from error


def check_same_config(
    workdir: Path,
    config: Mapping[str, Any],
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: {},
) -> None:
    """Refuse a folder whose run was started with another config.

    Args:
      workdir: the run's folder; one without ``config.json`` is always fine.
      config: the config as nested dicts.
      derived: config -> fields that depend on others and must not change, by dotted name.

    Raises:
      ConfigError: with every differing field, its recorded and its present value; or the record is damaged.
    """
    recorded_config = read_config(workdir)
    if not recorded_config:
        if (workdir / CONFIG_FILE).exists():
            raise ConfigError(f"--workdir={workdir}: its {CONFIG_FILE} is damaged; restore it or choose another folder")
        return
    recorded, present = (
        _flat(redact(json.loads(json.dumps(each)))) | dict(derived(each)) for each in (recorded_config, config)
    )
    differing = [
        f"{field}: {recorded.get(field)!r} there, {present.get(field)!r} here"
        for field in sorted(recorded.keys() | present.keys())
        if recorded.get(field) != present.get(field) and not field.startswith(FREE_FIELDS)
    ]
    if differing:
        raise ConfigError(
            f"--workdir={workdir} holds a run of another config ({'; '.join(differing)});"
            " choose another folder or the same config"
        )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
