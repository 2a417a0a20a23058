"""A long run holds its memory, its open files and its speed."""

import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from jacreg_train.telemetry import read_records
from tests.reliability.command import final_state, last_step, start

STEPS = 20_000
FLAGS = (
    f"--config.num_steps={STEPS}",
    "--config.log.every_steps=20",
    "--config.evaluation.every_steps=500",
    "--config.checkpoint.every_steps=500",
)


@pytest.mark.slow  # a minute
def test_twenty_thousand_steps(tmp_path):
    workdir, open_files = tmp_path / "run", []
    with open(tmp_path / "out", "w") as out:
        process = start(workdir, *FLAGS, stdout=out, stderr=out)
        while process.poll() is None:
            if last_step(workdir) > STEPS // 10:
                open_files.append(len(list(Path(f"/proc/{process.pid}/fd").glob("*"))))
            time.sleep(0.5)
    assert process.returncode == 0, (tmp_path / "out").read_text()[-2000:]
    assert int(final_state(workdir, *FLAGS).step) == STEPS
    records = read_records(workdir)
    quarter = len(records) // 4
    second, last = records[quarter : 2 * quarter], records[-quarter:]
    memory = lambda part: median(record["memory/resident_gib"] for record in part)
    assert memory(last) <= 1.02 * memory(second)
    step_ms = lambda part: median(record["time/step_ms"] for record in part)
    assert step_ms(last) <= 1.5 * step_ms(second)  # other work on the machine moves it; growth would not stop here
    half = len(open_files) // 2
    assert max(open_files[half:]) <= max(open_files[:half]) + 2
    pauses = [after["wall_time_s"] - before["wall_time_s"] for before, after in pairwise(records)]
    # 20 steps, and every 25th time an evaluation and a checkpoint, whose writing does not hold up the steps
    assert sorted(pauses)[int(0.99 * len(pauses))] - median(pauses) < 1
