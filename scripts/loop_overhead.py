"""How much time the training loop takes beside its bare compiled step: data, logging and checkpoints included.

    python scripts/loop_overhead.py

Trains on made-up images. After every ten steps of the loop, one record among them, the compiled step alone runs ten
times on one batch, so that a slow spell of the machine hits both. Prints one JSON line: milliseconds of the bare step
and of the loop beside it, and the latter's share of the former, by the median over the pairs; `share_of_sums` is that
of all steps together, one checkpoint in 500 included. Takes about a minute; run it on an idle machine. `--batch_size`
makes the step longer or shorter.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import jax
from ml_collections import ConfigDict

from configs import synthetic
from jacreg_train.training import setup
from jacreg_train.training.loop import train_and_evaluate
from jacreg_train.training.programs import compile_programs

STEPS = 10  # of the loop, then of the bare step
CHECKPOINT_EVERY = 255  # amid ten steps of the loop, so that what its thread does counts for the loop


def config_of(batch_size: int, num_pairs: int) -> ConfigDict:
    """A run whose last ten steps, with an evaluation and a checkpoint at their end, are not measured."""
    config = synthetic.get_config()
    config.batch_size = batch_size
    config.num_steps = STEPS * (num_pairs + 2)
    config.dataset.synthetic.image_shape = (16, 16, 3)
    config.log.every_steps = STEPS
    config.log.penalty_share_rounds = 0
    config.evaluation.every_steps = config.num_steps
    config.checkpoint.every_steps = CHECKPOINT_EVERY
    config.wandb.mode = "offline"
    return config


class BareSteps:
    """A writer that runs the bare step at each record, and keeps the times of both.

    Attributes:
      loop_s, bare_s: seconds of each ten steps.
    """

    def __init__(self, config: ConfigDict):
        run = setup.build(config)
        self._state, self._batch = run.init(), run.make_batches().example()
        programs = compile_programs(run, self._state, self._batch, share=False, norms=False)
        _, self._step = programs.train_step(0)
        self.loop_s: list[float] = []
        self.bare_s: list[float] = []
        self._ended = time.perf_counter()

    def write(self, step, metrics):
        started = time.perf_counter()
        self.loop_s.append(started - self._ended)
        for _ in range(STEPS):
            self._state, _ = jax.block_until_ready(self._step(self._state, *self._batch))
        self._ended = time.perf_counter()
        self.bare_s.append(self._ended - started)

    def close(self):
        pass


def measure(*, batch_size: int, num_pairs: int, workdir: Path) -> dict[str, float]:
    """Milliseconds a step, and shares of the bare step's time."""
    config = config_of(batch_size, num_pairs)
    times = BareSteps(config)
    train_and_evaluate(config, workdir, extra_writers=[times])
    # The first pair holds the compilation, the last one the evaluation.
    pairs = list(zip(times.loop_s, times.bare_s, strict=True))[1:-1]
    step_ms = 1e3 * median(bare for _, bare in pairs) / STEPS
    share = median(loop / bare for loop, bare in pairs) - 1
    whole = sum(loop for loop, _ in pairs) / sum(bare for _, bare in pairs) - 1
    return {"step_ms": step_ms, "loop_ms": share * step_ms, "share": share, "share_of_sums": whole}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_pairs", type=int, default=50)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(**vars(arguments), workdir=Path(folder) / "run")))


if __name__ == "__main__":
    main()
