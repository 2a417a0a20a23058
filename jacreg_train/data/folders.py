"""Where prepared TFDS data sets lie, and how one gets there whole. Looks at files only, no network."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jacreg_train.data.dataset import DataError, one_line

_NAME = re.compile(r"(?P<name>[a-z]\w*)(/(?P<config>\w[\w.\-]*))?(:(?P<version>\d+\.\d+\.\d+))?", re.ASCII)
_SILENCING = threading.Lock()
_VERSION = re.compile(r"\d+\.\d+\.\d+", re.ASCII)
# Sets distributed as idx files, which need no tensorflow, and where such files usually lie.
IDX_SOURCES = {
    "fashion_mnist": "/usr/share/datasets/fashion-mnist",  # Debian: apt-get install dataset-fashion-mnist
    "kmnist": "FOLDER_OF_IDX_FILES",
    "mnist": "FOLDER_OF_IDX_FILES",
}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A folder ``data_dir/name[/config]/version`` and the file formats that it holds."""

    folder: Path
    formats: tuple[str, ...]


def default_data_dir() -> Path:
    """TFDS's own, so that sets prepared with TFDS are found: $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    return Path(os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets")


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """``data_dir`` as an absolute path, the default where it is None or empty."""
    try:
        path = Path(data_dir).expanduser().absolute() if data_dir else default_data_dir()
        os.stat(path)
    except OSError:
        pass  # not there, or not ours to look at: said where it is used
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data_dir must be a path or None, got {data_dir!r} ({one_line(error)})", "data_dir") from error
    return path


def prepare_command(name: str, data_dir: Path) -> str:
    """The shell command that prepares a data set there."""
    source = f" --source={IDX_SOURCES[name]}" if name in IDX_SOURCES else ""
    where = shlex.quote(str(data_dir))
    return f"python -m jacreg_train.data.prepare --name={shlex.quote(name)}{source} --data_dir={where}"


def find_prepared(name: str, data_dir: Path) -> Prepared | None:
    """The newest version of ``name``, one with array_record before one without; None where there is none.

    Args:
        name: ``name``, ``name/config``, either with ``:version``.
        data_dir: where to look.

    Raises:
        DataError: not such a name; a set that has configs and none was named; an unreadable description.
    """
    parts = _NAME.fullmatch(name) if isinstance(name, str) else None
    if parts is None:
        raise DataError(f"data set name {name!r} is not of the form name, name/config or name:1.2.3")
    folder = data_dir / parts["name"] / (parts["config"] or "")
    versions = [p for p in _subfolders(folder) if _VERSION.fullmatch(p.name)]
    if parts["version"]:
        versions = [p for p in versions if p.name == parts["version"]]
    found = [Prepared(p, _formats(p)) for p in versions if (p / "dataset_info.json").exists()]
    if not found and not parts["config"]:
        configs = [p.name for p in _subfolders(folder) if any(p.glob("*/dataset_info.json"))]
        if configs:
            choices = ", ".join(f"{parts['name']}/{c}" for c in configs)
            raise DataError(f"data set {name!r} has configs in {data_dir}; name one: {choices}")
    newest = lambda p: ("array_record" in p.formats, tuple(map(int, p.folder.name.split("."))))
    return max(found, key=newest, default=None)


def require_array_record(name: str, data_dir: Path) -> Path:
    """The folder of a set that is prepared as array_record, else DataError with the command to run."""
    prepared = find_prepared(name, data_dir)
    if prepared is None:
        there = ", ".join(p.name for p in _subfolders(data_dir) if any(p.rglob("dataset_info.json"))) or "none"
        raise DataError(
            f"data set {name!r} is not prepared in {data_dir}; run: {prepare_command(name, data_dir)}"
            f" (prepared there: {there}; made where they are needed: digits, synthetic)"
        )
    if "array_record" not in prepared.formats:
        raise DataError(
            f"data set {name!r} in {prepared.folder} is prepared as {', '.join(prepared.formats)}, training"
            f" needs array_record; this converts it in place: {prepare_command(name, data_dir)}"
        )
    return prepared.folder


def publish(make_builder: Callable[[str], Any], data_dir: Path) -> Path:
    """Prepares a data set in a folder of its own, then renames it into ``data_dir``; returns the folder.

    So the set is there whole or not at all, however many processes do this at once and whenever one is
    killed. A killed one leaves a folder ``.preparing-*`` behind, which nobody reads.

    Args:
        make_builder: data_dir -> TFDS builder.
        data_dir: made where it is missing.

    Raises:
        DataError: the folder cannot be written, or something that is no data set is in the way.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".preparing-", dir=data_dir) as scratch:
            builder = make_builder(scratch)
            with _silence():  # TFDS announces a download
                builder.download_and_prepare(file_format="array_record")
            ready = Path(builder.data_dir)
            target = data_dir / ready.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                ready.rename(target)
            except OSError:
                if not (target / "dataset_info.json").exists():  # else another process was first
                    raise
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"cannot prepare a data set in {data_dir} ({one_line(error)}); choose another data_dir", "data_dir"
        ) from error
    return target


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    # One at a time: the streams are redirected for all threads.
    with _SILENCING, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _subfolders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return []


def _formats(folder: Path) -> tuple[str, ...]:
    try:
        info = json.loads((folder / "dataset_info.json").read_text())
        return (info.get("fileFormat", "tfrecord"), *info.get("alternativeFileFormats", ()))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"cannot read {folder / 'dataset_info.json'}: {one_line(error)}") from error
