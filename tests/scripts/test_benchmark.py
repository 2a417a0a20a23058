"""The benchmark at tiny shapes: what it counts, what it writes, what it refuses."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from bench import command, flops, functionals, measure, parts, render, targets
from bench.cases import make_case
from bench.methods import METHODS, PLAIN
from bench.results import Results, read
from bench.table import Settings, measure_table
from jax import lax

from jacreg_train.experiments.report_data import load

pytestmark = pytest.mark.xdist_group("benchmark")  # in one worker, that its fixtures are made once
SETTINGS = Settings(rounds=2, patience_s=60.0, limit_s=60.0, budget=2**30)
NUMBERS = ("NHWC", "HWIO", "NHWC")


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def convolution(x, kernel, stride=1):
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=NUMBERS)


def test_counts_products_loops_and_calls():
    product = lambda a, b: a @ b
    one = 2 * 3 * 5
    assert flops.multiply_adds(product, shape(2, 3), shape(3, 5)) == one
    assert flops.multiply_adds(jax.vmap(jax.jit(product), (0, None)), shape(7, 2, 3), shape(3, 5)) == 7 * one
    loop = lambda a, b: lax.map(lambda row: lax.map(lambda _: jax.checkpoint(product)(row, b), jnp.arange(4)), a)
    assert flops.multiply_adds(loop, shape(7, 2, 3), shape(3, 5)) == 4 * 7 * one


def test_code_whose_result_is_unused_does_not_count():
    def value_and_more(a):
        return jnp.sum(a), a @ a

    assert flops.multiply_adds(lambda a: jax.jit(value_and_more)(a)[0], shape(3, 3)) == 0


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_and_its_gradients_count_the_same(stride):
    x, kernel = shape(2, 8, 8, 3), shape(3, 3, 3, 5)
    forward = 2 * {1: 22, 2: 11}[stride] ** 2 * 5 * 3  # 3 * 8 - 2 and 3 * 4 - 1 products in a row, padding left out
    apply = lambda x, kernel: convolution(x, kernel, stride)
    assert flops.multiply_adds(apply, x, kernel) == forward
    loss = lambda x, kernel: jnp.sum(apply(x, kernel) ** 2)
    assert flops.multiply_adds(jax.grad(loss, argnums=(0, 1)), x, kernel) == 3 * forward
    groups = lambda x, kernel: lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS, feature_group_count=3
    )
    assert flops.multiply_adds(groups, x, shape(3, 3, 1, 6)) == 2 * 22**2 * 6


def test_the_branch_of_the_platform_counts():
    function = lambda a: lax.platform_dependent(a, cpu=lambda a: a @ a, default=lambda a: a @ a @ a)
    assert flops.multiply_adds(function, shape(2, 2), platform="cpu") == 8
    assert flops.multiply_adds(function, shape(2, 2), platform="cuda") == 16


def test_what_cannot_be_counted_is_refused():
    chosen = lambda a: lax.cond(a[0, 0] > 0, lambda a: a @ a, lambda a: a, a)
    with pytest.raises(ValueError, match="run time"):
        flops.multiply_adds(chosen, shape(2, 2))
    unknown = lambda a: lax.while_loop(lambda a: a[0, 0] < 9, lambda a: a @ a, a)
    with pytest.raises(ValueError, match="while"):
        flops.multiply_adds(unknown, shape(2, 2))


def test_counts_the_cores_own_convolutions():
    """One dense layer after one convolution: exact for all K = 10 outputs is the work of ten probes."""
    case = make_case("tiny", 4)
    arguments = (case.params, case.inputs, jax.random.key(0))
    plain = flops.multiply_adds(case.loss_gradient(), *arguments)
    forward = flops.multiply_adds(case.apply_fn, case.params, case.inputs)
    assert forward == 4 * (121 * 3 * 4 + 25 * 4 * 4 + 16 * 10)
    assert plain == 3 * forward - 4 * 121 * 3 * 4  # nobody wants the gradient by the images
    floor = targets._cotangents(1)(forward, plain - 2 * forward)
    one = flops.multiply_adds(targets.COTANGENT.gradient(case), *arguments)
    everything = flops.multiply_adds(targets.LAYERWISE.gradient(case), *arguments)
    assert 0.5 * floor < one < everything < 10 * one


def test_takes_turns_and_stops_calling_what_is_slow():
    order = []
    calls = {name: lambda turn, name=name: order.append((name, turn)) for name in "ab"}
    seconds = measure.time_in_turns(calls, rounds=2, patience_s=60.0)
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert [len(each) for each in seconds.values()] == [2, 2]
    assert [len(each) for each in measure.time_in_turns(calls, rounds=2, patience_s=0.0).values()] == [1, 1]
    assert measure.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert measure.ratios([6.0], [1.0, 3.0]) == [3.0]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The results of two methods and some targets on a tiny model."""
    results = Results(tmp_path_factory.mktemp("bench"), ["benchmark.py"])
    methods = {name: METHODS[name] for name in ("dense Jacobian", "layerwise", "cotangent probe")}
    measure_table(results, SETTINGS, "tiny", 3, methods)
    targets.step(results, SETTINGS, "tiny", 2, wrt="inputs", most=2.1)
    functionals.contract_memory(results, SETTINGS, 2, 6, 4)
    functionals.exact_part_of_positions(results, SETTINGS, 2, "gaussian", 8)
    return results


def test_a_row_for_each_method(measured):
    rows = {row["method"]: row for row in read(measured.path)["rows"]}
    assert set(rows) == {PLAIN, "dense Jacobian", "layerwise", "cotangent probe"}
    for row in rows.values():
        assert row["fits"]
        assert all(row[name] > 0 for name in ("time_ratio", "memory_mib", "compile_s", "flop_ratio"))
        assert row["time_low"] <= row["time_ratio"] <= row["time_high"]
    assert rows[PLAIN]["flop_ratio"] == 1
    assert rows["dense Jacobian"]["relative_error"] < 1e-5  # so the reference, layerwise, is right as well
    assert 0.01 < rows["cotangent probe"]["relative_error"] < 10


def test_the_targets(measured):
    listed = {each["name"]: each for each in read(measured.path)["targets"]}
    (step,) = (each for name, each in listed.items() if "training step" in name)
    assert step["target"] == 2.1
    assert step["ratio"] > 0
    (variance,) = (each for name, each in listed.items() if name.startswith("variance"))
    assert 0 < variance["ratio"] < 0.5
    (memory,) = (each for name, each in listed.items() if "contract" in name)
    assert 0 < memory["ratio"] < memory["target"]


def test_tables_pictures_and_report_of_the_results(measured, tmp_path):
    content = read(measured.path)
    text = render.markdown(content)
    for name in ("dense Jacobian", "tiny CNN", "the exact one", "training step"):
        assert name in text
    plots = pytest.importorskip("bench.plots")
    assert [path.name for path in plots.draw(content, tmp_path)] == ["time.png", "memory.png"]
    (benchmark,) = load([measured.path]).benchmarks
    assert benchmark.content["rows"]


def test_what_does_not_fit_is_not_run(tmp_path):
    results = Results(tmp_path, ["benchmark.py"])
    small = Settings(rounds=1, patience_s=60.0, limit_s=60.0, budget=2**10)
    measure_table(results, small, "tiny", 3, {"dense Jacobian": METHODS["dense Jacobian"]})
    row = results.content["rows"][1]
    assert not row["fits"]
    assert row["time_ratio"] is None
    assert "does not fit" in render.methods_table([row])


def test_results_go_on_where_they_were(tmp_path):
    results = Results(tmp_path, ["benchmark.py"])
    results.add("targets", {"name": "a", "ratio": 1.0, "target": 2.0})
    again = Results(tmp_path, ["benchmark.py"])
    again.add("targets", {"name": "b", "ratio": 3.0, "target": 2.0})
    again.add("targets", {"name": "a", "ratio": 1.5, "target": 2.0})
    assert [each["ratio"] for each in read(again.path)["targets"]] == [1.5, 3.0]
    assert render.shortfalls(again.content["targets"]) == ["b: 3, target 2"]
    assert "**no**" in render.targets_table(again.content["targets"])
    content = read(again.path) | {"versions": {"jax": "0"}}
    again.path.write_text(json.dumps(content))
    assert Results(tmp_path, ["benchmark.py"]).content["targets"] == []


def test_writes_between_the_markers(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n")
    render.write_between_markers(readme, "new\n")
    assert readme.read_text() == f"before\n{render.BEGIN}\nnew\n{render.END}\nafter\n"
    readme.write_text(render.BEGIN)
    with pytest.raises(ValueError, match="README"):
        render.write_between_markers(readme, "new\n")


def test_command_line(tmp_path, capsys, monkeypatch):
    output = f"--output={tmp_path}"
    assert command.main(["benchmark.py", "--list"]) == 0
    assert "table/resnet18/200" in capsys.readouterr().out.split()
    assert set(parts.quick_parts()) < set(parts.all_parts())
    for wrong in ("--only=nothing", "--only=(", "--rounds=0", "--render", f"--readme={tmp_path / 'none'}"):
        assert command.main(["benchmark.py", output, wrong]) == command.USAGE_ERROR
        assert wrong.split("=")[0] in capsys.readouterr().err or wrong == "--only=("
    assert not list(tmp_path.iterdir())

    def good(results, settings):
        results.add("targets", {"name": "good", "ratio": math.pi, "target": 3.0})

    def bad(results, settings):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(parts, "all_parts", lambda: {"bad": bad, "good": good})
    assert command.main(["benchmark.py", output]) == 0
    captured = capsys.readouterr()
    assert "out of luck" in captured.err
    assert "falls short: good: 3.14, target 3" in captured.out
    assert command.main(["benchmark.py", output, "--render"]) == 0


def test_readme_shows_what_was_measured():
    """`python scripts/benchmark.py --output=docs/benchmark --render --readme=README.md` wrote the tables."""
    root = Path(__file__).parents[2]
    text = render.markdown(read(root / "docs" / "benchmark" / "benchmark.json"))
    assert f"{render.BEGIN}\n{text}{render.END}" in (root / "README.md").read_text(encoding="utf-8")
