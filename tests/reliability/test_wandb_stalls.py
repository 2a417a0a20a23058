"""W&B's server stops answering in the middle of a run: the run goes on, and is told of once."""

import signal
import time
from itertools import pairwise

import pytest

from jacreg_train.telemetry import read_records, read_wandb_history
from tests.reliability.command import environment, last_step, start, steps, wait_until
from tests.telemetry.conftest import FakeWandbServer


@pytest.fixture
def server():
    server = FakeWandbServer()
    yield server
    server.close()


@pytest.mark.slow  # a minute, of which W&B waits 30 for its server
def test_a_server_that_stops_answering_neither_stops_nor_slows_the_run(server, tmp_path):
    workdir = tmp_path / "run"
    flags = ("--config.num_steps=1000000", "--config.wandb.mode=online", "--config.log.every_steps=10")
    flags += ("--config.checkpoint.every_steps=1000",)
    login = {"WANDB_API_KEY": "0123456789" * 4, "WANDB_BASE_URL": server.address, "HOME": str(tmp_path)}
    with open(tmp_path / "out", "w") as out:
        process = start(workdir, *flags, env=environment(**login), stdout=out, stderr=out)
        wait_until(process, lambda: last_step(workdir) >= 200 and server.history())
        server.stall.set()
        stalled_at, step = time.time(), last_step(workdir)
        time.sleep(5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    told = (tmp_path / "out").read_text()
    assert process.returncode == 143, told
    (warning,) = [line for line in told.splitlines() if "W&B: " in line and "WARNING" in line]
    assert "the server took no more data; `wandb sync" in warning
    assert last_step(workdir) > step + 100
    records = read_records(workdir)
    later = [record["wall_time_s"] for record in records if record["wall_time_s"] > stalled_at]
    assert max(after - before for before, after in pairwise(later)) < 1
    assert [record for record in steps(workdir) if record % 10 == 0] == list(range(10, last_step(workdir) + 1, 10))
    assert [record["step"] for record in read_wandb_history(workdir)] == steps(workdir)  # for `wandb sync`
