"""How much time the training loop takes beside its compiled step, data and logging included.

    python scripts/loop_overhead.py

Trains on made-up images and prints one JSON line: the step's time, the loop's time a step beside it, and the share.
`--batch_size` makes the step longer or shorter. Run it on an idle machine.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from configs import synthetic
from jacreg_train.telemetry import read_records
from jacreg_train.training.loop import train_and_evaluate

LOG_EVERY = 10


def measure(*, batch_size: int, num_steps: int, workdir: Path) -> dict[str, float]:
    """Milliseconds of a step and of the loop beside it, and the latter's share of the former, after the first records.

    Every record tells the mean time that the loop waited for a step; the time between two records holds all the rest.
    """
    config = synthetic.get_config()
    config.batch_size = batch_size
    config.num_steps = num_steps
    config.dataset.synthetic.image_shape = (16, 16, 3)
    config.log.every_steps = LOG_EVERY
    config.log.penalty_share_rounds = 0
    config.evaluation.every_steps = config.checkpoint.every_steps = num_steps
    config.compilation_cache = "off"

    stamps = []

    class Stamps:
        def write(self, step, metrics):
            stamps.append(time.perf_counter())

        def close(self):
            pass

    train_and_evaluate(config, workdir, extra_writers=[Stamps()])
    # The first record follows the warm-up, the last one an evaluation and a checkpoint.
    steps_ms = [record["time/step_ms"] for record in read_records(workdir)][1:-1]
    per_step_ms = [1e3 * (end - start) / LOG_EVERY for start, end in itertools.pairwise(stamps[:-1])]
    beside = [whole - step for whole, step in zip(per_step_ms, steps_ms, strict=True)]
    step_ms, loop_ms = sum(steps_ms) / len(steps_ms), sum(beside) / len(beside)
    return {"step_ms": step_ms, "loop_ms": loop_ms, "share": loop_ms / step_ms}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_steps", type=int, default=100)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(**vars(arguments), workdir=Path(folder) / "run")))


if __name__ == "__main__":
    main()
