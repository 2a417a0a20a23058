"""What a workdir holds so that its run can be repeated: config, command, versions, revision, device."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from jacreg_train.telemetry.writers import replace_file

CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
REDACTED = "[redacted]"

_PACKAGES = (
    *("jacreg", "jax", "jaxlib", "flax", "optax", "dm-haiku", "numpy", "orbax-checkpoint"),
    *("tensorflow-datasets", "ml_collections", "wandb"),
)
_SECRET_NAME = re.compile(
    r"api_?key|(access|auth|identity|id|bearer|refresh)_?token|(^|_)token$|secret|passw(or)?d|credential|private_?key",
    re.IGNORECASE,
)
_URL_LOGIN = re.compile(r"(\w[\w+.-]*://)[^/@\s]+@")


def write_run_record(workdir: str | os.PathLike, config: Mapping[str, Any], argv: Sequence[str]) -> None:
    """Write `config.json` (the resolved configuration) and `run.json` into a workdir.

    `run.json` holds `command`, `argv`, `started` (UTC), `python`, `versions`, `git_revision` (None outside a
    checkout), `git_changed` (whether tracked files differ from it) and `device`. A resumed run keeps them and
    adds the same about each later start to the list `resumed`. Secrets are left out (see `redact`).

    Args:
        workdir: the run's folder, made where missing.
        config: the resolved configuration as nested dicts of JSON values; tuples become lists.
        argv: the command line, program first.

    Raises:
        TypeError: a configuration value that JSON can't hold.
    """
    folder = Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    start = describe_run(argv)
    path = folder / RUN_FILE
    record = read_run_record(folder)
    if record:
        record.setdefault("resumed", []).append(start)
    replace_file(folder / CONFIG_FILE, json.dumps(redact(config), indent=2) + "\n")
    replace_file(path, json.dumps(record or start, indent=2) + "\n")


def read_run_record(workdir: str | os.PathLike) -> dict[str, Any]:
    """The content of `run.json`; empty where there is none or where it cannot be read."""
    return _read_object(Path(workdir) / RUN_FILE)


def read_config(workdir: str | os.PathLike) -> dict[str, Any]:
    """The content of `config.json`; empty where there is none or where it cannot be read."""
    return _read_object(Path(workdir) / CONFIG_FILE)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def describe_run(argv: Sequence[str]) -> dict[str, Any]:
    """Command, time, versions, revision and device of this process, without secrets."""
    argv = redact(list(argv))
    revision, changed = git_revision()
    return {
        "command": shlex.join(argv),
        "argv": argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "git_revision": revision,
        "git_changed": changed,
        "device": describe_device(),
    }


def describe_device() -> dict[str, Any]:
    """Platform, kind and counts of the devices that jax sees."""
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "count": len(devices),
        "processes": jax.process_count(),
        "cpu_cores": os.cpu_count(),
    }


def git_revision() -> tuple[str | None, bool | None]:
    """The revision of this package's checkout, and whether tracked files differ; None, None outside one."""
    here = Path(__file__).resolve()
    # An installed copy may lie in a foreign repository (a venv inside one): only a tracked file counts.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None, None
    revision = _git(here.parent, "rev-parse", "HEAD")
    status = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return revision, None if status is None else bool(status)


def redact(value: Any) -> Any:
    """A copy of nested dicts, lists and strings in which every secret reads "[redacted]".

    A secret is: the value of a key or flag with a telling name (`api_key`, `password`, ...), the value of
    an environment variable with such a name wherever it turns up, and a login inside an address.
    """
    secrets = [text for name, text in os.environ.items() if _SECRET_NAME.search(name) and len(text) >= 8]
    return _redact(value, secrets)


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            name: REDACTED if _is_secret_name(name) and each else _redact(each, secrets) for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        items = [_redact(each, secrets) for each in value]
        for index, (flag, item) in enumerate(pairwise(items)):
            if _is_secret_name(flag) and flag.startswith("-") and "=" not in flag and isinstance(item, str):
                items[index + 1] = REDACTED
        return items
    if isinstance(value, str):
        return _redact_text(value, secrets)
    return value


def _redact_text(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    name, equals, rest = text.partition("=")
    if equals and rest and not name.strip("-").count(" ") and _is_secret_name(name):
        return f"{name}={REDACTED}"
    return _URL_LOGIN.sub(rf"\1{REDACTED}@", text)


def _is_secret_name(name: Any) -> bool:
    return isinstance(name, str) and bool(_SECRET_NAME.search(name.strip("-").replace("-", "_").replace(".", "_")))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
