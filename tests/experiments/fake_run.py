"""Stands in for `jacreg_train.main`: quick, resumes from its own record, stops in order on SIGTERM.

Its metric is `weight` times the step. It can be told to fail.
"""

import fcntl
import json
import signal
import sys
import time
from pathlib import Path

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
weight = float(flags.get("config.jacobian.weight", 1))
num_steps = int(flags.get("config.num_steps", 5))
step_s = float(flags.get("config.step_s", 0.02))
workdir = Path(flags["workdir"])
workdir.mkdir(parents=True, exist_ok=True)
lock = open(workdir / ".lock", "a")  # noqa: SIM115
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

with open(workdir / "starts", "a") as starts:
    starts.write(f"{sys.argv[1:]}\n")
if weight == 13:
    sys.exit("jacreg-train: config.jacobian.weight = 13: choose another one")
stopping = False


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
metrics = open(workdir / "metrics.jsonl", "a+")  # noqa: SIM115
metrics.seek(0)
done = len(metrics.readlines())
for step in range(done + 1, num_steps + 1):
    time.sleep(step_s)
    value = "NaN" if weight == 7 else weight * step
    metrics.write(json.dumps({"step": step, "wall_time_s": 0, "test/accuracy": value}) + "\n")
    metrics.flush()
    if stopping:
        sys.exit(143)
    if weight == 9 and step == 2 and not (workdir / "was_killed").exists():
        (workdir / "was_killed").touch()
        signal.raise_signal(signal.SIGKILL)
