"""Metrics to Weights & Biases, from a thread of its own, so that W&B can neither stop nor slow training."""

import http.client
import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from bisect import insort
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jacreg_train.telemetry.run_record import redact

MODES = ("offline", "online")
STEP = "step"  # logged with every record: the axis of all metrics
# What a run's summary shows of a metric, where it is not the last value.
SUMMARIES = {"test/accuracy": "max", "test/nll": "min"}
MEDIANS = ("time/step_ms", "time/data_ms")  # W&B can't aggregate to a median: set at the end

MIN_FREE_BYTES = 2**20  # W&B drops what it can't write without a word, so stop before

_logger = logging.getLogger(__name__)
_STOP = object()


class WandbWriter:
    """Log to W&B; offline by default, which needs neither login nor network.

    Online without a login or without an answering server, the run is recorded offline instead, for
    `wandb sync`. Any failure gives one warning, and training goes on; the JSON-lines file stays
    the complete record.

    Args:
        folder: where W&B's own folder `wandb/` goes (the workdir).
        mode: "offline" or "online".
        project, group, name, tags: how W&B files the run; None leaves the choice to W&B.
        run_id: the same id on a resume makes W&B join both parts; None: a random one.
        config: the whole configuration, nested; secrets are left out, here and in how the run is filed.
        start_timeout_s: how long an online start may take before the run is recorded offline.
        close_timeout_s: how long `close` waits for uploads.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        mode: str = "offline",
        project: str | None = None,
        group: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        run_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        start_timeout_s: float = 30.0,
        close_timeout_s: float = 30.0,
    ):
        if mode not in MODES:
            raise ValueError(f"wandb.mode = {mode!r}: must be one of {', '.join(MODES)}")
        self._mode = mode
        self._start_timeout_s = start_timeout_s
        self._close_timeout_s = close_timeout_s
        filed = {"project": project, "group": group, "name": name, "tags": list(tags) or None, "config": config or {}}
        self._arguments = {"dir": str(folder), "id": run_id, **redact(filed)}
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._warned = False
        self._failed = threading.Event()
        self._records: queue.Queue = queue.Queue(maxsize=10_000)
        self._thread = threading.Thread(target=self._work, name="wandb-writer", daemon=True)
        self._thread.start()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._failed.is_set():
            return
        try:
            self._records.put_nowait((int(step), {name: float(value) for name, value in metrics.items()}))
        except queue.Full:
            self._give_up("it takes no more records")

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._records.put_nowait(_STOP)
        except queue.Full:
            self._failed.set()
        self._thread.join(self._close_timeout_s + 5.0)  # W&B's own timeout comes first
        if self._thread.is_alive():
            self._give_up(f"it did not finish within {self._close_timeout_s:g} s")

    # Everything below runs in the thread.

    def _work(self) -> None:
        try:
            run = self._start()
            self._log_all(run)
        except OSError as failure:
            self._give_up(str(failure))
        except BaseException as failure:  # W&B may raise anything
            self._give_up(f"{type(failure).__name__}: {failure}")

    def _start(self) -> Any:
        # W&B reports on itself to its server, and would wait for that at the process's end.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # takes most of a second: paid here, beside the first compilation

        if self._mode == "online":
            # W&B's own start hangs on where nothing answers, so ask first.
            session = wandb.setup(wandb.Settings(silent=True))
            if not wandb.login(prompt=False, verify=False):
                self._go_offline("not logged in (run `wandb login`)")
            elif failure := _no_answer(session.settings.base_url, timeout_s=min(10.0, self._start_timeout_s)):
                self._go_offline(f"no answer from {session.settings.base_url} ({failure})")
        try:
            return self._init(wandb)
        except Exception as failure:
            if self._mode == "offline":
                raise
            self._go_offline(f"the server refused the run ({type(failure).__name__}: {failure})")
            wandb.teardown()  # frees the run's id
            return self._init(wandb)

    def _go_offline(self, reason: str) -> None:
        self._mode = "offline"
        self._warn(f"{reason}; training goes on, recorded in {self._arguments['dir']}/wandb for `wandb sync`")

    def _init(self, wandb: Any) -> Any:
        settings = wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,  # a remote's address can hold a login; the revision is in run.json
            # W&B records the command line as it stands.
            x_disable_meta=redact(sys.argv) != sys.argv,
            # A killed process loses at most this long.
            x_transaction_log_flush_interval=1.0,
            init_timeout=self._start_timeout_s,
            finish_timeout=self._close_timeout_s,
            finish_timeout_raises=True,
            summary_warnings=0,
        )
        run = wandb.init(
            mode=self._mode,
            resume="allow" if self._mode == "online" and self._arguments["id"] else None,
            settings=settings,
            **self._arguments,
        )
        run.define_metric(STEP, hidden=True)
        for name in ("train/*", "test/*", "time/*", "memory/*"):
            run.define_metric(name, step_metric=STEP)
        for name, summary in SUMMARIES.items():
            run.define_metric(name, step_metric=STEP, summary=summary)
        if self._mode == "online":
            _logger.info("W&B run: %s", run.url)
        return run

    def _log_all(self, run: Any) -> None:
        position = run.step - 1  # W&B's own counter has to grow with every record; ours is the axis
        values: dict[str, list[float]] = {name: [] for name in MEDIANS}
        while (item := self._records.get()) is not _STOP:
            if shutil.disk_usage(run.dir).free < MIN_FREE_BYTES:
                raise OSError(f"the disk under {run.dir} is full")
            step, metrics = item
            position = max(step, position + 1)
            # Committed at once: otherwise a record stays pending until the next step.
            run.log({STEP: step, **metrics}, step=position, commit=True)
            for name, seen in values.items():
                if name in metrics:
                    insort(seen, metrics[name])
        run.summary.update({name: median(seen) for name, seen in values.items() if seen})
        try:
            run.finish()
        except TimeoutError:
            self._warn(f"the server took no more data; `wandb sync {run.dir}` uploads the rest")

    def _give_up(self, reason: str) -> None:
        self._failed.set()
        self._warn(f"{reason}; training goes on without it, metrics.jsonl is complete")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            _logger.warning("W&B: %s.", " ".join(redact(message).split()))


def _no_answer(address: str, timeout_s: float) -> str | None:
    """Why a server can't be reached, or None where it answers anything at all."""
    try:
        urllib.request.urlopen(address, timeout=timeout_s).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, http.client.HTTPException) as failure:
        return str(failure)
    return None


def read_wandb_history(folder: str | Path) -> list[dict[str, Any]]:
    """The metrics in W&B's local files of one run, in step order, each step once.

    Resuming offline gives every part a folder of its own; what a later part holds of a step wins.

    Args:
        folder: the folder that holds `wandb/` (the workdir).

    Raises:
        RuntimeError: `wandb` can't read a file; its message is passed on.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for path in sorted(Path(folder).glob("wandb/*run-*/*.wandb"), key=lambda path: path.parent.name.split("-", 1)[1]):
        done = subprocess.run(
            [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{path}: {done.stderr.strip()}")
        part: dict[int, dict[str, Any]] = {}
        for line in done.stdout.splitlines():
            item = json.loads(line).get("history", {}).get("item", {})
            if STEP in item:
                metrics = {name: value for name, value in item.items() if not name.startswith("_")}
                part.setdefault(int(item[STEP]), {}).update(metrics)
        if part:  # a later part starts where it resumed: what was beyond that is written again
            by_step = {step: record for step, record in by_step.items() if step < min(part)} | part
    return [by_step[step] for step in sorted(by_step)]
