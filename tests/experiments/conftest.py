"""Local records to make reports from: two runs, a sweep of three trials, a benchmark, with hostile names among them."""

import json
import math

import pytest

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def _make_run(folder, *, scale=1.0, num_records=20, config=None, command="jacreg-train"):
    folder.mkdir(parents=True)
    lines = []
    for index in range(1, num_records + 1):
        record = {
            "step": 10 * index,
            "wall_time_s": 1e9 + 2 * index,
            "train/loss": scale / index,
            "train/accuracy": 1 - scale / (index + 1),
            "train/penalty": 100 * scale / index,
            "train/penalty_standard_error": 10 * scale / index,
            "train/epoch": index / 4,
            "time/step_ms": 5.0 + scale,
            "time/data_ms": 0.5,
            "memory/resident_gib": 0.5,
        }
        if index == 1:
            record |= {"time/penalty_share": 0.4, "memory/compiled_gib": 0.1}
        if index % 5 == 0:
            record |= {"test/accuracy": 1 - scale / (index + 2), "test/nll": scale / index}
            record |= {"test/squared_jacobian_norm": 7.0 if index > 5 else "NaN"}
        lines.append(json.dumps(record))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 9')  # and a torn line
    (folder / "config.json").write_text(json.dumps(config or {"seed": 1, "jacobian": {"weight": scale}}))
    record = {"command": command, "started": "2026-01-01", "versions": {"jax": "1"}, "device": {"kind": HOSTILE}}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def _make_sweep(folder, *, num_trials=3, name="sweep"):
    trials = []
    for number in range(num_trials):
        parameters = {"jacobian.weight": 10.0**-number, "jacobian.estimator.name": f"e{number % 2}"}
        run = _make_run(folder / "trials" / f"{number:04d}", scale=1 + number / 10)
        trials.append(
            {
                "trial": number,
                "state": "done" if number else "pruned",
                "parameters": parameters,
                "value": 0.9 + number / 1000 if number else None,
                "last_value": 0.5,
                "seconds": 3.0,
                "workdir": str(run.relative_to(folder)),
                "kills": 0,
                "reason": "",
                "command": f"jacreg-train --config.note={HOSTILE}",
            }
        )
    summary = {
        "name": name,
        "method": "grid",
        "metric": {"name": "test/accuracy", "goal": "maximize"},
        "parameters": ["jacobian.weight", "jacobian.estimator.name"],
        "trials": trials,
        "best": list(range(num_trials - 1, 0, -1)),
        "importances": {"jacobian.weight": 0.75, "jacobian.estimator.name": 0.25},
        "content": {},
    }
    (folder / "sweep.json").write_text(json.dumps(summary))
    return folder


def _benchmark(path):
    rows: list[dict] = [
        {"model": "cnn", "n": n, "method": method, "time_ratio": ratio * (1 + n / 100), "memory_mib": 10.0 * n}
        | {"compile_s": 2.0, "flop_ratio": ratio, "relative_error": error, "fits": True}
        for n in (8, 32)
        for method, ratio, error in (("layerwise", 2.0, 0.0), ("stochastic", 1.2, 0.1), (HOSTILE, 3.0, 0.2))
    ]
    rows.append({"model": "cnn", "n": 32, "method": "exact", "time_ratio": None, "fits": False})
    targets = [{"name": "one", "ratio": 2.0, "target": 3.0}, {"name": "two", "ratio": 9.0, "target": 3.0}]
    path.write_text(json.dumps({"device": "cpu", "versions": {}, "rows": rows, "targets": targets}))
    return path


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """Paths of everything a report can show."""
    folder = tmp_path_factory.mktemp("records")
    hostile_config = {"seed": 2, "note": HOSTILE, "jacobian": {"weight": math.pi}}
    return [
        _make_run(folder / "plain"),
        _make_run(folder / "a<b onclick=x>&'\"%{y}", scale=0.5, config=hostile_config, command=HOSTILE),
        _make_sweep(folder / "sweep"),
        _benchmark(folder / "bench.json"),
    ]


@pytest.fixture(scope="session")
def make_run():
    """(folder, scale=, num_records=, config=, command=) -> folder, with a run in it."""
    return _make_run


@pytest.fixture(scope="session")
def make_sweep():
    """(folder, num_trials=, name=) -> folder, with a sweep in it."""
    return _make_sweep
