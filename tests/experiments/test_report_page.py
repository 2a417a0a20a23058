"""The page without a browser: self-contained, inert, complete."""

import html.parser
import json

import pytest

from jacreg_train.experiments.panels import PANELS
from jacreg_train.experiments.report_benchmark import benchmark_figures
from jacreg_train.experiments.report_command import main
from jacreg_train.experiments.report_data import load
from jacreg_train.experiments.report_figures import run_colors, run_figures, sweep_figures
from jacreg_train.experiments.report_page import MAX_SHOWN, render
from jacreg_train.telemetry import METRICS


class Page(html.parser.HTMLParser):
    """Elements, their attributes, and the text of scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self._open = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self._open = ""


@pytest.fixture(scope="module")
def page(records):
    return Page(render(load(records)))


def test_nothing_is_loaded_from_anywhere(page):
    for tag, attributes in page.elements:
        assert not {"src", "href", "action"} & attributes.keys(), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "base"), tag
    policy = next(each["content"] for tag, each in page.elements if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_nothing_from_a_run_becomes_markup(page):
    assert len(page.scripts) == 3
    assert not any(tag == "img" for tag, _ in page.elements)
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)


def test_the_data_holds_every_run_and_chart(page, records):
    data = json.loads(page.scripts[0])
    assert [run["name"] for run in data["runs"]] == [run.name for run in load(records).runs]
    drawn = {chart["id"] for chart in data["charts"]}
    assert drawn == {each["id"] for tag, each in page.elements if each.get("class") == "chart"}
    assert {"Accuracy", "Parallel coordinates", "Targets", "Where a step's time goes"} <= {
        chart["title"] for chart in data["charts"]
    }
    axes = data["runs"][0]["axes"]
    assert axes["step"][:2] == [10, 20]
    assert axes["epoch"][:2] == [0.25, 0.5]
    assert axes["seconds"][:2] == [0, 2]


def figures(records):
    contents = load(records)
    colors = run_colors(contents.runs, contents.sweeps)
    sections = {section: dict(drawn) for section, drawn in run_figures(contents.runs, colors)}
    return contents, sections, colors


def test_curves_and_their_runs(records):
    contents, sections, colors = figures(records)
    accuracy = sections["Task"]["Accuracy"]
    assert len(accuracy.data) == 2 * len(contents.runs)
    plain = [trace for trace in accuracy.data if trace.meta["run"] == "plain"]
    assert [trace.line.dash for trace in plain] == ["solid", "dot"]
    assert {trace.line.color for trace in plain} == {colors["plain"]}
    assert "Learning rate" not in sections["Task"]  # nobody recorded it


def test_the_penalty_has_its_standard_error_around_it(records):
    _, sections, _ = figures(records)
    band, line = sections["Jacobian"]["Penalty and its standard error"].data[:2]
    assert band.fill == "toself"
    assert band.y[0] == 110
    assert band.y[-1] == 90
    assert line.y[0] == 100


def test_shares_of_a_step(records):
    _, sections, _ = figures(records)
    mine = {trace.name: trace.x[0] for trace in sections["Time"]["Where a step's time goes"].data}
    plain = [each for each in sections["Time"]["Where a step's time goes"].data if each.meta["run"] == "plain"]
    assert {trace.name: trace.x[0] for trace in plain} == {
        "data": 0.5,
        "step without the penalty": pytest.approx(3.6),
        "penalty": pytest.approx(2.4),
    }
    assert mine


def test_parallel_coordinates(records):
    contents, _, colors = figures(records)
    parallel = dict(sweep_figures(contents.sweeps[0], colors))["Parallel coordinates"]
    assert len(parallel.data) == 3
    best = next(trace for trace in parallel.data if trace.meta["run"] == "sweep/0002")
    assert best.y == (0.0, 0.0, 1.0)  # smallest weight, first name, best value
    assert best.opacity == 1
    assert "jacobian.weight = 0.01" in best.text[0]


def test_benchmark_plots(records):
    (benchmark,) = load(records).benchmarks
    drawn = dict(benchmark_figures(benchmark))
    assert set(drawn) == {
        "Time over that of a plain gradient",
        "Memory",
        "Arithmetic over that of a plain gradient",
        "Compile time",
        "Time ratio against the batch size",
        "Error against time",
        "Targets",
    }
    assert drawn["Targets"].data[0].marker.color[0] != drawn["Targets"].data[0].marker.color[1]


def test_only_the_best_of_a_large_sweep_are_shown_at_first(tmp_path, make_sweep):
    contents = load([make_sweep(tmp_path / "large", num_trials=MAX_SHOWN + 4)])
    data = json.loads(Page(render(contents)).scripts[0])
    shown = [run["name"] for run in data["runs"] if run["shown"]]
    assert len(shown) == MAX_SHOWN
    assert f"sweep/{MAX_SHOWN + 3:04d}" in shown
    colors = run_colors(contents.runs, contents.sweeps)
    assert len(set(colors.values())) > MAX_SHOWN  # by rank


def test_every_panel_shows_known_metrics():
    for charts in PANELS.values():
        for chart in charts:
            assert {*chart.metrics, *filter(None, [chart.band])} <= METRICS.keys()


def test_the_command_line(records, tmp_path, capsys):
    output = tmp_path / "new" / "page.html"
    assert main([*map(str, records), f"--output={output}", "--title=<i>mine</i>"]) == 0
    text = output.read_text()
    assert "<title>&lt;i&gt;mine&lt;/i&gt;</title>" in text
    assert "5 runs" in capsys.readouterr().out
