"""The benchmark's file: rows as they are measured, written at once, so that a killed run keeps what it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jacreg_train.telemetry.run_record import describe_run
from jacreg_train.telemetry.writers import replace_file

# Each list of the file, and what names one of its entries.
KEYS = {"rows": ("model", "n", "method"), "targets": ("name",), "pareto": ("model", "n", "method")}


class Results:
    """Rows in `folder/benchmark.json`.

    A file of the same device and versions is gone on with: an entry measured again takes the old one's place.
    """

    def __init__(self, folder: Path, argv: list[str]) -> None:
        self.path = folder / "benchmark.json"
        folder.mkdir(parents=True, exist_ok=True)
        run = describe_run(argv)
        fresh = {name: run[name] for name in ("device", "versions", "command", "started", "git_revision")}
        before = read(self.path)
        same = all(before.get(name) == fresh[name] for name in ("device", "versions"))
        self.content: dict[str, Any] = fresh | {name: before.get(name, []) if same else [] for name in KEYS}

    def add(self, entries: str, entry: Mapping[str, Any]) -> None:
        """Put an entry into "rows", "targets" or "pareto" and write the file."""
        key = [entry.get(name) for name in KEYS[entries]]
        listed = self.content[entries]
        places = [i for i, other in enumerate(listed) if [other.get(name) for name in KEYS[entries]] == key]
        if places:
            listed[places[0]] = dict(entry)
        else:
            listed.append(dict(entry))
        replace_file(self.path, json.dumps(self.content, indent=1) + "\n")

    def rows(self, model: str, method: str) -> list[dict[str, Any]]:
        return [row for row in self.content["rows"] if (row["model"], row["method"]) == (model, method)]


def read(path: Path) -> dict[str, Any]:
    """The file's content; empty where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
