"""The command line as these tests run it: a tiny model on made-up images, with everything switched on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jacreg_train.main import parse
from jacreg_train.training.checkpoints import Checkpoints
from jacreg_train.training.setup import build
from jacreg_train.training.state import TrainState

TINY = (
    "--config=configs/synthetic.py",
    "--config.dataset.synthetic.image_shape=(4, 4, 1)",
    "--config.dataset.synthetic.num_classes=3",
    "--config.dataset.synthetic.num_examples=16",
    "--config.model.cnn.widths=(2,)",
    "--config.model.cnn.strides=(2,)",
    "--config.model.cnn.dense_width=None",
    "--config.batch_size=4",
    "--config.log.every_steps=1",
    "--config.log.penalty_share_rounds=0",
    "--config.checkpoint.every_steps=5",
)


def arguments(workdir: Path, *flags: str) -> list[str]:
    """The command line, program first."""
    return ["jacreg-train", *TINY, *flags, f"--workdir={workdir}"]


def start(workdir: Path, *flags: str, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) -> subprocess.Popen:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "jacreg_train.main", *arguments(workdir, *flags)[1:]],
        stdout=stdout,
        stderr=stderr,
        text=True,
        **options,
    )


def run(workdir: Path, *flags: str, **options) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    process = start(workdir, *flags, **options)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def wait_until(process: subprocess.Popen, happened: Callable[[], bool]) -> None:
    """Return when something has happened, or the process has ended."""
    end = time.monotonic() + 240
    while not happened() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def kill_when(process: subprocess.Popen, happened: Callable[[], bool], number: int = signal.SIGKILL) -> int:
    """Send a signal as soon as something has happened; the process's exit code."""
    wait_until(process, happened)
    process.send_signal(number)
    process.communicate(timeout=240)
    return process.returncode


def last_step(workdir: Path) -> int:
    """The last step in the local record, 0 where there is none."""
    lines = _lines(workdir)
    return json.loads(lines[-1])["step"] if lines else 0


def steps(workdir: Path) -> list[int]:
    """The step of every line of the local record."""
    return [json.loads(line)["step"] for line in _lines(workdir)]


def _lines(workdir: Path) -> list[str]:
    path = workdir / "metrics.jsonl"
    return [line for line in path.read_text().split("\n")[:-1] if line] if path.exists() else []


def final_state(workdir: Path, *flags: str) -> TrainState:
    """The state in the newest checkpoint."""
    config, _, _ = parse(arguments(workdir, *flags))
    with Checkpoints(workdir, keep_latest=2, keep_best=1) as checkpoints:
        restored = checkpoints.restore_latest(build(config).init())
    assert restored is not None
    return restored[0]


def array_bytes(state: TrainState) -> bytes:
    """Every array but the key, as bytes."""
    import jax

    return b"".join(
        np.asarray(leaf).tobytes()
        for leaf in jax.tree.leaves((state.params, state.model_state, state.opt_state, state.step))
    )


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}
