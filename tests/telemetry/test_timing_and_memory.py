import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from jacreg_train.telemetry import (
    StepClock,
    compare_times,
    compiled_bytes,
    device_peak_bytes,
    time_share,
)


def test_the_first_step_of_each_kind_is_compile_time():
    clock = StepClock()
    for kind, seconds in [("plain", 0.05), ("plain", 0.01), ("penalised", 0.06), ("penalised", 0.01)]:
        with clock.data():
            time.sleep(0.002)
        with clock.step(kind) as wait_for:
            time.sleep(seconds)
            assert wait_for(jnp.ones(())) == 1
    metrics = clock.take(batch_size=10)
    assert metrics["time/compile_s"] >= 0.11
    assert 10 <= metrics["time/step_ms"] < 50
    assert metrics["time/data_ms"] >= 2
    rate = 1e4 / (metrics["time/step_ms"] + metrics["time/data_ms"])
    assert metrics["time/examples_per_s"] == pytest.approx(rate)


def test_an_interval_of_compiling_only_has_no_step_time():
    clock = StepClock()
    with clock.compiling():
        time.sleep(0.01)
    with clock.step():
        pass
    metrics = clock.take(1)
    assert metrics.keys() == {"time/compile_s"}
    assert metrics["time/compile_s"] >= 0.01


def test_each_interval_counts_for_itself():
    clock = StepClock()
    for seconds in (0, 0.05):
        with clock.step():
            time.sleep(seconds)
    assert clock.take(1)["time/step_ms"] >= 50
    with clock.step():
        pass
    assert clock.take(1)["time/step_ms"] < 50


def test_a_comparison_takes_turns():
    calls: list[str] = []
    seconds = compare_times({name: partial(calls.append, name) for name in "abc"}, rounds=2)
    assert calls == [*"abc", *"abc", *"bca"]
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2, "c": 2}
    with pytest.raises(ValueError, match="rounds = 0"):
        compare_times({}, rounds=0)


def test_time_share_uses_medians():
    assert time_share([4.0, 4.0, 100.0], [1.0, 1.0, 0.0]) == 0.75


def test_compiled_bytes_hold_arguments_and_outputs():
    compiled = jax.jit(lambda x, y: x @ y + 1).lower(jnp.ones((32, 64)), jnp.ones((64, 16))).compile()
    assert (compiled_bytes(compiled) or 0) >= 4 * (32 * 64 + 64 * 16 + 32 * 16)


def test_donated_arguments_count_once():
    x = jnp.ones(1000)
    plain = compiled_bytes(jax.jit(lambda x: x + 1).lower(x).compile())
    donated = compiled_bytes(jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile())
    assert plain is not None
    assert donated is not None
    assert plain - donated == 4000


def test_resident_bytes_follow_the_process():
    """In a process of its own: in this one other tests' memory comes and goes."""
    program = "before = resident_bytes(); block = np.ones(30_000_000, np.uint8); print(resident_bytes() - before)"
    program = f"import numpy as np; from jacreg_train.telemetry.memory import resident_bytes; {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 29e6 < int(done.stdout) < 60e6


def test_device_peak_is_none_or_positive():
    peak = device_peak_bytes()
    assert peak is None or peak > 0
