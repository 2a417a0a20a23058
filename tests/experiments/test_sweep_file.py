"""Sweep files: what the schema means, and one clear line for everything it does not allow."""

import contextlib
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jacreg_train.experiments.sweep_file import SweepError, parse_sweep, read_sweep, to_flags

SWEEPS = sorted((Path(__file__).parents[2] / "configs" / "sweeps").glob("*.yaml"))


def content(**changes):
    base = {
        "method": "grid",
        "metric": {"name": "test/accuracy", "goal": "maximize"},
        "parameters": {"jacobian": {"parameters": {"weight": {"values": [0.1, 0.2]}}}},
    }
    return base | changes


def parameters(**entries):
    return content(method="random", run_cap=3, parameters=entries)


def test_nested_and_dotted_names_are_config_fields():
    sweep = parse_sweep(
        content(
            parameters={
                "model": {"parameters": {"dim": {"value": 8}}},
                "jacobian.weight": {"values": [1, 2]},
                "config.seed": {"values": [3]},
                "config": {"parameters": {"batch_size": {"value": 16}}},
            }
        )
    )
    assert sweep.constants == {"model.dim": 8, "batch_size": 16}
    assert list(sweep.grid()) == [{"jacobian.weight": 1, "seed": 3}, {"jacobian.weight": 2, "seed": 3}]
    fields = sweep.fields({"jacobian.weight": 2, "seed": 3})
    assert to_flags(fields) == [
        "--config.model.dim=8",
        "--config.batch_size=16",
        "--config.jacobian.weight=2",
        "--config.seed=3",
    ]


def test_a_mapping_as_value_merges_field_by_field():
    estimators = [{"name": "layerwise"}, {"name": "stochastic", "num_probes": 2}]
    sweep = parse_sweep(content(parameters={"jacobian.estimator": {"values": estimators}}))
    first, second = sweep.grid()
    assert (first["jacobian.estimator"], second["jacobian.estimator"]) == ("layerwise", "stochastic, 2")
    assert sweep.fields(second) == {"jacobian.estimator.name": "stochastic", "jacobian.estimator.num_probes": 2}


def test_values_are_written_as_one_would_type_them():
    fields = {"a": 1e-05, "b": True, "c": None, "d": [16, 32], "e": (3,), "f": "x y", "g": []}
    assert to_flags(fields) == [
        *("--config.a=1e-05", "--config.b=true", "--config.c=None", "--config.d=(16, 32)", "--config.e=(3,)"),
        *("--config.f=x y", "--config.g=()"),
    ]


@pytest.mark.parametrize(
    ("entry", "distribution", "low", "high"),
    [
        ({"min": 1, "max": 4}, "int_uniform", 1, 4),
        ({"min": 1, "max": 4.0}, "uniform", 1, 4),
        ({"distribution": "log_uniform", "min": 0, "max": 1}, "log_uniform", 1, math.e),
        ({"distribution": "log_uniform_values", "min": 1e-4, "max": 1}, "log_uniform_values", 1e-4, 1),
    ],
)
def test_ranges(entry, distribution, low, high):
    (parameter,) = parse_sweep(parameters(seed=entry)).parameters
    assert (parameter.distribution, parameter.low, parameter.high) == (distribution, low, pytest.approx(high))


def test_a_grid_over_ranges():
    entries = {"a": {"min": 1, "max": 3}, "b": {"distribution": "q_uniform", "min": 0.0, "max": 0.5, "q": 0.25}}
    points = list(parse_sweep(content(parameters=entries)).grid())
    assert [(point["a"], point["b"]) for point in points] == [(a, b) for a in (1, 2, 3) for b in (0, 0.25, 0.5)]


@pytest.mark.parametrize(
    ("entry", "min_iter", "eta"),
    [
        ({"type": "hyperband", "min_iter": 3}, 3, 3),
        ({"type": "hyperband", "min_iter": 2, "eta": 2}, 2, 2),
        ({"type": "hyperband", "max_iter": 27, "s": 2}, 3, 3),
    ],
)
def test_hyperband(entry, min_iter, eta):
    band = parse_sweep(content(early_terminate=entry)).hyperband
    assert band is not None
    assert (band.min_iter, band.eta) == (min_iter, eta)


def test_numbers_as_people_write_them(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "method: grid\nmetric: {name: test/nll}\nparameters: {jacobian.weight: {values: [1e-3, 2, 1_0, 1.5E+2]}}"
    )
    sweep = read_sweep(path)
    assert [point["jacobian.weight"] for point in sweep.grid()] == [0.001, 2, 10, 150.0]
    assert (sweep.name, sweep.goal) == ("mine", "minimize")


def test_flags_of_the_command():
    command = ["${env}", "python", "-m", "jacreg_train.main", "--config=a.py", "--config.seed=1", "${args}"]
    assert parse_sweep(content(command=command)).flags == ("--config=a.py", "--config.seed=1")


WRONG = [
    (content(method="gird"), "method = 'gird': must be one of grid, random, bayes"),
    (content(metod="grid"), "metod: unknown, the choices are .*; did you mean method?"),
    (content(metric={"name": 3}), "metric.name = 3"),
    (content(metric={"name": "a", "goal": "up"}), "metric.goal = 'up': must be one of maximize, minimize"),
    (content(parameters={}), "parameters: none given"),
    (content(parameters=[1]), "parameters: must be a mapping"),
    (parameters(a=3), "parameters.a: must be a mapping, not 3"),
    (parameters(a={}), "parameters.a: give value, values, min and max"),
    (parameters(a={"vales": [1]}), "parameters.a: give value"),
    (parameters(a={"values": []}), "parameters.a.values = \\[\\]"),
    (parameters(a={"values": [1, 1.0]}), "1.0 is given twice"),
    (parameters(a={"min": 2, "max": 1}), "min = 2 must be below max = 1"),
    (parameters(a={"min": 0, "max": 1, "distribution": "normal"}), "must be one of constant, categorical"),
    (parameters(a={"min": 0, "max": 1, "distribution": "log_uniform_values"}), "needs a positive number"),
    (parameters(a={"min": 0, "max": 1000.0, "distribution": "log_uniform"}), "takes exponents"),
    (parameters(a={"min": 0.5, "max": 1, "distribution": "int_uniform"}), "needs whole numbers"),
    (parameters(a={"min": 0, "max": float("inf")}), "must be a finite number"),
    (parameters(a={"min": 0, "max": 1, "q": 0.1}), "parameters.a.q: unknown"),
    (parameters(a={"value": 1}, **{"a.b": {"value": 2}}), "parameters.a and parameters.a.b set the same field"),
    (content(parameters={"a": {"min": 0.0, "max": 1.0}}), "has no grid"),
    (content(run_cap=0), "run_cap = 0"),
    (content(run_cap=True), "run_cap = True"),
    (content(early_terminate={"type": "median"}), "early_terminate.type = 'median'"),
    (content(early_terminate={"type": "hyperband"}), "give either min_iter, or max_iter with s"),
    (content(early_terminate={"type": "hyperband", "min_iter": 3, "eta": 1}), "eta = 1"),
    (content(command="python"), "command = 'python'"),
    (content(name="a/b"), "name = 'a/b'"),
    ([], "the file: must be a mapping"),
    (None, "the file: must be a mapping"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_mistakes_are_named_on_one_line(wrong, message):
    with pytest.raises(SweepError, match=message) as caught:
        parse_sweep(wrong)
    assert "\n" not in str(caught.value)


def test_a_huge_grid_is_refused():
    many = {"values": list(range(30))}
    with pytest.raises(SweepError, match="the grid has 27000 points: give run_cap"):
        parse_sweep(content(parameters={"a": many, "b": many, "c": many}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("a: 1\na: 2", "a: given twice"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("a: &x [1]\nb: [*x, *x]", "aliases are not supported"),
        ("[" * 5000, "not YAML"),
        ("\x00", "not YAML"),
        ("#" * 2_000_000, "larger than a megabyte"),
    ],
)
def test_files_that_are_no_sweep_files(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(SweepError, match=message):
        read_sweep(path)


def test_no_such_file(tmp_path):
    with pytest.raises(SweepError, match="No such file"):
        read_sweep(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_the_sweep_files_of_the_project(path):
    assert read_sweep(path).parameters


def test_the_digits_sweep_has_twelve_trials():
    (path,) = (path for path in SWEEPS if path.stem == "digits")
    sweep = read_sweep(path)
    assert len(list(sweep.grid())) == 12
    assert {parameter.path for parameter in sweep.parameters} == {"jacobian.weight", "jacobian.estimator"}


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["parameters", "value", "values", "min", "max", "q", "distribution", "config", "type", "name"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = ["method", "metric", "parameters", "early_terminate", "run_cap", "command", "name"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(field=st.sampled_from(FIELDS), tree=TREES)
@example(field="metric", tree={"\n": None})
def test_any_content_is_read_or_refused(field, tree):
    try:
        parse_sweep(content(**{field: tree}))
    except SweepError as error:
        assert "\n" not in str(error)  # noqa: PT017


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 10_000), junk=st.text(max_size=5))
def test_any_damage_to_a_file_is_read_or_refused(tmp_path_factory, position, junk):
    text = yaml.safe_dump(content())
    position %= len(text)
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes((text[:position] + junk + text[position + len(junk) :]).encode("utf-8", errors="replace"))
    with contextlib.suppress(SweepError):
        read_sweep(path)
