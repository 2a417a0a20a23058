import json
import math

import pytest

from jacreg_train.experiments.report_command import main
from jacreg_train.experiments.report_data import MAX_POINTS, ReportError, RunData, differing_fields, load


def test_all_kinds_of_records(records):
    contents = load(records)
    names = [run.name for run in contents.runs]
    assert names == ["plain", "a<b onclick=x>&'\"%{y}", "sweep/0000", "sweep/0001", "sweep/0002"]
    (sweep,) = contents.sweeps
    assert sweep.run_names == {0: "sweep/0000", 1: "sweep/0001", 2: "sweep/0002"}
    assert [each.name for each in contents.benchmarks] == ["bench"]


def test_what_a_run_says(records):
    run = load(records[:1]).runs[0]
    assert len(run.records) == 20
    assert run.best("test/accuracy") == pytest.approx(1 - 1 / 22)
    assert run.median("time/step_ms") == 6.0
    assert run.last("test/nll") == pytest.approx(1 / 20)
    assert run.curve("test/squared_jacobian_norm") == ([50, 100, 150, 200], [None, 7.0, 7.0, 7.0])  # nan: a gap
    assert run.last("no/such") is None


def test_a_folder_of_runs_and_unique_names(tmp_path, make_run, make_sweep):
    make_run(tmp_path / "a" / "same")
    make_run(tmp_path / "b" / "same")
    make_sweep(tmp_path / "b" / "s")
    contents = load([tmp_path / "a", tmp_path / "b"])
    assert [run.name for run in contents.runs] == ["a/same", "b/same", "sweep/0000", "sweep/0001", "sweep/0002"]
    assert len(contents.sweeps) == 1
    assert load([tmp_path / "a", tmp_path / "a"]).runs == load([tmp_path / "a"]).runs


def test_long_curves_are_thinned(tmp_path):
    records = tuple({"step": step, "x": float(step)} for step in range(20_000))
    steps, values = RunData("r", tmp_path, records, {}, {}).curve("x")
    assert len(steps) == MAX_POINTS
    assert (steps[0], steps[-1]) == (0, 19_999)
    assert steps == values


def test_differing_fields(tmp_path):
    configs = [
        {"seed": 1, "model": {"name": "cnn", "width": 8}, "wandb": {"name": "a"}},
        {"seed": 1, "model": {"name": "mlp"}, "wandb": {"name": "b"}},
    ]
    runs = [RunData(str(i), tmp_path, (), config, {}) for i, config in enumerate(configs)]
    assert differing_fields(runs) == {"model.name": ["cnn", "mlp"], "model.width": [8, None]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bench.json", "[1]", "not a JSON object"),
        ("bench.json", "{", "not JSON"),
        ("bench.json", "[" * 100_000, "not JSON"),
        ("bench.json", '{"rows": 3}', "has no list `rows`"),
        ("run/sweep.json", '{"name": 3}', "no sweep's summary"),
        ("run/metrics.jsonl", "rubbish\nrubbish\n", "line 1: not a metric record"),
        ("run/nothing", "", r"no run \(metrics.jsonl\), no sweep"),
    ],
)
def test_damaged_records_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    target = path if path.suffix == ".json" and path.parent == tmp_path else path.parent
    with pytest.raises(ReportError, match=message) as caught:
        load([target])
    assert "\n" not in str(caught.value)


def test_no_such_path(tmp_path, capsys):
    assert main([str(tmp_path / "none"), f"--output={tmp_path}/r.html"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_values_that_are_no_numbers_are_left_out(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    with open(folder / "metrics.jsonl", "w") as file:
        file.write(json.dumps({"step": 1, "a": "<b>", "b": [1], "c": True, "d": 2, "e": "Infinity"}) + "\n")
    (run,) = load([folder]).runs
    assert run.records == ({"step": 1, "d": 2, "e": None},)
    assert not any(isinstance(value, float) and math.isnan(value) for value in run.records[0].values())
