"""The report as one HTML file that needs nothing else: Plotly, styles, data and charts are inside it.

Nothing from a run becomes markup or script: text is escaped, data is JSON in an inert element, and the page's security
policy runs only the two scripts whose hashes it names and loads nothing from anywhere.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from jacreg_train.experiments.report_benchmark import benchmark_figures
from jacreg_train.experiments.report_data import BenchmarkData, Contents, RunData, SweepData, differing_fields
from jacreg_train.experiments.report_figures import (
    metric_label,
    run_colors,
    run_figures,
    sweep_figures,
)

MAX_SHOWN = 12  # runs that are shown at first
MAX_FIELDS = 8  # differing config fields in the table of runs
_WIDE = ("Parallel coordinates",)


def render(contents: Contents, title: str = "Jacobian-regularised training") -> str:
    """The page's HTML."""
    page = _Page()
    colors = run_colors(contents.runs, contents.sweeps)
    for benchmark in contents.benchmarks:
        _benchmark(page, benchmark)
    for sweep in contents.sweeps:
        _sweep(page, sweep, colors)
    if contents.runs:
        _runs(page, contents.runs, colors)
    shown = _shown_at_first(contents)
    data = {
        "runs": [{"name": run.name, "shown": run.name in shown, "axes": _axes(run)} for run in contents.runs],
        "charts": page.charts,
    }
    script, plotly = _asset("page.js"), get_plotlyjs().replace("\r", "")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy([plotly, script])}">',
            f"<title>{_escape(title)}</title>",
            f"<style>{_asset('page.css')}</style>",
            "</head>",
            "<body>",
            f'<header><h1>{_escape(title)}</h1><p class="quiet">{_escape(_subtitle(contents))}</p></header>',
            _controls(contents.runs, colors),
            "<main>",
            *page.parts,
            "</main>",
            f"<footer>made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by scripts/report.py</footer>",
            f'<script type="application/json" id="report-data">{_inert_json(data)}</script>',
            f"<script>{plotly}</script>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
        ]
    )


class _Page:
    """Collects the page's parts in order, and the charts for the script to draw."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.charts: list[dict[str, Any]] = []

    def figures(self, figures: Iterable[tuple[str, go.Figure]]) -> None:
        self.parts.append('<div class="grid">')
        for title, figure in figures:
            name = f"chart-{len(self.charts)}"
            content = json.loads(figure.to_json())
            dashes = (content["layout"].pop("meta", None) or {}).get("dashes", [])
            said = f'<p class="dashes">{_escape("   ".join(dashes))}</p>' if dashes else ""
            wide = " wide" if title in _WIDE else ""
            self.parts.append(
                f'<div class="card{wide}"><h3>{_escape(title)}</h3>{said}<div class="chart" id="{name}"></div></div>'
            )
            self.charts.append({"id": name, "title": title, "figure": content})
        self.parts.append("</div>")

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{_escape(text)}</h2>")

    def quiet(self, text: str) -> None:
        self.parts.append(f'<p class="quiet">{_escape(text)}</p>')

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """A table that sorts by a click on a heading; columns without content are left out."""
        rows = [list(row) for row in rows]
        used = [i for i in range(len(headings)) if any(row[i] not in (None, "") for row in rows)]
        headings, rows = [headings[i] for i in used], [[row[i] for i in used] for row in rows]
        numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(headings))]
        kinds = [' class="number"' if each else "" for each in numeric]
        head = "".join(f"<th{kind}>{_escape(text)}</th>" for text, kind in zip(headings, kinds, strict=True))
        body = "".join(f"<tr>{''.join(map(_cell, row, kinds))}</tr>" for row in rows)
        self.parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )


def _runs(page: _Page, runs: Sequence[RunData], colors: Mapping[str, str]) -> None:
    page.heading("Runs")
    fields = differing_fields(runs)
    columns = list(fields)[:MAX_FIELDS]
    results = {
        "best test accuracy": lambda run: run.best("test/accuracy"),
        "test NLL": lambda run: run.last("test/nll"),
        "test ECE": lambda run: run.last("test/ece"),
        "squared Jacobian norm": lambda run: run.last("test/squared_jacobian_norm"),
        "step (ms, median)": lambda run: run.median("time/step_ms"),
        "penalty share": lambda run: run.median("time/penalty_share"),
        "resident memory (GiB)": lambda run: run.best("memory/resident_gib"),
    }
    rows = [
        [run.name, *(fields[name][i] for name in columns), run.records[-1]["step"] if run.records else None]
        + [get(run) for get in results.values()]
        for i, run in enumerate(runs)
    ]
    page.table(["run", *columns, "steps", *results], rows)
    if len(fields) > MAX_FIELDS:
        page.quiet(f"{len(fields) - MAX_FIELDS} more config fields differ; see each run's config below.")
    if any(run.thinned() for run in runs):
        page.quiet("Curves of more than 1000 points are thinned evenly.")
    for section, figures in run_figures(runs, colors):
        page.heading(section)
        page.figures(figures)
    page.heading("How each run was made")
    page.parts += [_run_details(run) for run in runs]


def _run_details(run: RunData) -> str:
    record = run.record
    versions = record.get("versions")
    said = {
        "started": record.get("started"),
        "revision": f"{record.get('git_revision')}{' (with changes)' if record.get('git_changed') else ''}",
        "device": json.dumps(record.get("device")),
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else None,
        "resumed": f"{len(record['resumed'])} times" if isinstance(record.get("resumed"), list) else None,
    }
    lines = "".join(f"<p>{name}: {_escape(text)}</p>" for name, text in said.items() if text)
    return (
        f'<details class="run"><summary>{_escape(run.name)}</summary>'
        f'<pre class="command">{_escape(_lines(record.get("command", "the command is not recorded")))}</pre>{lines}'
        f"<pre>{_escape(json.dumps(run.config, indent=2))}</pre></details>"
    )


def _sweep(page: _Page, sweep: SweepData, colors: Mapping[str, str]) -> None:
    content = sweep.content
    metric = content["metric"]
    page.heading(f"Sweep {sweep.name}")
    states = [trial["state"] for trial in content["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    page.quiet(f"{content.get('method')}, {metric.get('goal')} {metric_label(metric['name'])}: {counts}")
    page.figures(sweep_figures(sweep, colors))
    ranks = {trial: rank for rank, trial in enumerate(content.get("best", []), 1)}
    by_rank = sorted(content["trials"], key=lambda trial: ranks.get(trial["trial"], len(ranks) + 1))
    rows = [
        [
            *(ranks.get(trial["trial"]), trial["trial"], trial["state"]),
            *(trial["parameters"].get(name) for name in content["parameters"]),
            trial["value"] if trial["value"] is not None else trial["last_value"],
            *(trial["seconds"], trial["kills"] or None, trial["reason"]),
        ]
        for trial in by_rank
    ]
    headings = ["rank", "trial", "state", *content["parameters"], metric["name"], "seconds", "kills", "reason"]
    page.table(headings, rows)
    if content.get("best"):
        best = next(trial for trial in content["trials"] if trial["trial"] == content["best"][0])
        page.parts.append('<h3 class="after">The best trial again</h3>')
        page.parts.append(f'<pre class="command">{_escape(_lines(best["command"]))}</pre>')


def _benchmark(page: _Page, benchmark: BenchmarkData) -> None:
    content = benchmark.content
    page.heading(f"Benchmark {benchmark.name}")
    page.quiet(f"on {json.dumps(content.get('device'))}, with {json.dumps(content.get('versions'))}")
    page.figures(benchmark_figures(benchmark))
    columns = list(dict.fromkeys(name for row in content["rows"] for name in row))
    page.table(columns, [[row.get(name) for name in columns] for row in content["rows"]])
    targets = [each for each in content.get("targets") or [] if isinstance(each, Mapping)]
    if targets:
        rows = [[each.get("name"), each.get("ratio"), each.get("target"), _reached(each)] for each in targets]
        page.table(["target", "measured", "at most", "reached"], rows)


def _lines(command: str) -> str:
    """A command with a flag a line, still to be pasted as it is."""
    return command.replace(" --", " \\\n  --")


def _reached(target: Mapping[str, Any]) -> str:
    ratio, limit = target.get("ratio"), target.get("target")
    if not isinstance(ratio, int | float) or not isinstance(limit, int | float):
        return ""
    return "yes" if ratio <= limit else "no"


def _controls(runs: Sequence[RunData], colors: Mapping[str, str]) -> str:
    theme = "".join(f"<option>{each}</option>" for each in ("auto", "light", "dark"))
    parts = [f'<label>theme <select id="theme">{theme}</select></label>']
    if runs:
        options = {"step": "step", "epoch": "epoch", "seconds": "time"}
        axis = "".join(f'<option value="{value}">{text}</option>' for value, text in options.items())
        parts.append(f'<label>horizontal axis <select id="axis">{axis}</select></label>')
        parts.append('<button id="all-runs">show all</button><button id="no-runs">hide all</button>')
        labels = "".join(
            f'<label title="{_escape(run.name)}"><input type="checkbox" value="{_escape(run.name)}">'
            f'<span class="swatch" style="background:{colors[run.name]}"></span>'
            f"<span>{_escape(run.name)}</span></label>"
            for run in runs
        )
        is_open = " open" if len(runs) <= 2 * MAX_SHOWN else ""
        parts.append(
            f'<details{is_open}><summary id="runs-shown">runs</summary><div class="runs">{labels}</div></details>'
        )
    return f'<nav class="controls"><div>{"".join(parts)}</div></nav>'


def _shown_at_first(contents: Contents) -> set[str]:
    """All runs where they are few; of a large sweep its best, then others, up to `MAX_SHOWN`."""
    best = [
        sweep.run_names[trial]
        for sweep in contents.sweeps
        for trial in sweep.content.get("best", [])
        if trial in sweep.run_names
    ]
    in_sweeps = {name for sweep in contents.sweeps for name in sweep.run_names.values()}
    alone = [run.name for run in contents.runs if run.name not in in_sweeps]
    names = dict.fromkeys([*alone, *best, *(run.name for run in contents.runs)])
    return set(list(names)[:MAX_SHOWN])


def _axes(run: RunData) -> dict[str, list[Any]]:
    """What the horizontal axis can show of each step: itself, the epoch, seconds since the first record."""
    steps = [record["step"] for record in run.records]
    times = [record.get("wall_time_s") for record in run.records]
    known = [each for each in times if each is not None]
    start = known[0] if known else 0.0
    with_epoch = [record for record in run.records if record.get("train/epoch") and record["step"]]
    epochs_per_step = with_epoch[-1]["train/epoch"] / with_epoch[-1]["step"] if with_epoch else None
    return {
        "step": steps,
        "epoch": [None if epochs_per_step is None else step * epochs_per_step for step in steps],
        "seconds": [None if each is None else round(each - start, 3) for each in times],
    }


def _subtitle(contents: Contents) -> str:
    counts = {"run": len(contents.runs), "sweep": len(contents.sweeps), "benchmark": len(contents.benchmarks)}
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count)


def _cell(value: Any, kind: str) -> str:
    if value is None:
        return f'<td{kind} data-value=""></td>'
    if isinstance(value, float):
        return f'<td{kind} data-value="{value!r}">{value:.4g}</td>'
    return f"<td{kind}>{_escape(value)}</td>"


def _inert_json(data: Any) -> str:
    """JSON that no HTML parser sees a tag in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _asset(name: str) -> str:
    folder = resources.files("jacreg_train.experiments") / "report_assets"
    return (folder / name).read_text(encoding="utf-8")


def _escape(value: Any) -> str:
    return html.escape(str(value))
