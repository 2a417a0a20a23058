"""Charts of runs and sweeps, as Plotly figures.

Every trace that belongs to a run says so in `meta.run`, so that the page can hide and show runs in all charts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from jacreg_train.experiments.panels import PANELS, Chart
from jacreg_train.experiments.report_data import RunData, SweepData
from jacreg_train.experiments.report_style import PALETTE, new_figure, short, text
from jacreg_train.telemetry import METRICS, Metric

_PART_COLORS = (PALETTE[5], PALETTE[0], PALETTE[1], PALETTE[7])
_DASHES = ("solid", "dot", "dash", "dashdot")
_MEMORY = ("memory/compiled_gib", "memory/device_peak_gib", "memory/resident_gib")


def run_colors(runs: Sequence[RunData], sweeps: Sequence[SweepData]) -> dict[str, str]:
    """Run name -> colour. A sweep's many runs are coloured by rank, dark to bright from worst to best."""
    colors = {run.name: color for run, color in zip(runs, cycle(PALETTE), strict=False)}
    for sweep in sweeps:
        ranked = [sweep.run_names[trial] for trial in sweep.content.get("best", []) if trial in sweep.run_names]
        if len(ranked) > len(PALETTE):
            shades = [0.3 + 0.55 * (1 - rank / (len(ranked) - 1)) for rank in range(len(ranked))]
            colors |= dict(zip(ranked, map(_hex, sample_colorscale("Viridis", shades)), strict=True))
    return colors


def run_figures(
    runs: Sequence[RunData], colors: Mapping[str, str]
) -> Iterator[tuple[str, list[tuple[str, go.Figure]]]]:
    """Sections of (title, figure), in the order of `PANELS`; what no run recorded is left out."""
    for section, charts in PANELS.items():
        figures = [(chart.title, _curves(chart, runs, colors)) for chart in charts]
        if section == "Time":
            figures.append(("Where a step's time goes", _time_shares(runs)))
        if section == "Memory":
            figures.append(("Memory by kind", _memory_bars(runs)))
        drawn = [(title, figure) for title, figure in figures if figure.data]
        if drawn:
            yield section, drawn


def sweep_figures(sweep: SweepData, colors: Mapping[str, str]) -> list[tuple[str, go.Figure]]:
    """A sweep as parallel coordinates, and how much each parameter mattered."""
    figures = [("Parallel coordinates", _parallel(sweep, colors))]
    importances = sweep.content.get("importances")
    if importances:
        shares = dict(sorted(importances.items(), key=lambda item: item[1]))
        bar = go.Bar(
            x=list(shares.values()),
            y=[text(name) for name in shares],
            orientation="h",
            marker_color=PALETTE[0],
            hovertemplate="%{y}: %{x:.1%}<extra></extra>",
        )
        figures.append(("Importance of the parameters", new_figure([bar], x_title="share", tickformat=".0%")))
    return [(title, figure) for title, figure in figures if figure.data]


def _curves(chart: Chart, runs: Sequence[RunData], colors: Mapping[str, str]) -> go.Figure:
    recorded = [name for name in chart.metrics if any(name in record for run in runs for record in run.records)]
    traces = []
    for run in runs:
        if chart.band is not None and chart.metrics[0] in recorded:
            traces += _band(run, chart.metrics[0], chart.band, colors[run.name])
        for metric, dash in zip(recorded, _DASHES, strict=False):
            steps, values = run.curve(metric)
            if not steps:
                continue
            label = METRICS[metric].label
            traces.append(
                go.Scatter(
                    x=steps,
                    y=values,
                    name=text(run.name),
                    mode="lines+markers" if len(steps) < 30 else "lines",
                    line={"color": colors[run.name], "width": 2, "dash": dash},
                    marker={"size": 5},
                    meta={"run": run.name, "axis": True},
                    hovertemplate=f"{label}: %{{y:.5g}}<br>%{{x:,.6~g}}",
                )
            )
    units = {METRICS[metric].unit for metric in recorded}
    legend = [
        f"{'—' if dash == 'solid' else '··' if dash == 'dot' else '- -'} {METRICS[metric].label}"
        for metric, dash in zip(recorded, _DASHES, strict=False)
    ]
    unit = units.pop() if len(units) == 1 else ""
    figure = new_figure(traces, x_title="step", y_title=unit)
    if len(legend) > 1:  # colours mean runs, so dashes need saying
        figure.update_layout(meta={"dashes": legend})
    return figure


def _band(run: RunData, metric: str, error: str, color: str) -> list[go.Scatter]:
    points = [
        (record["step"], record[metric], record[error])
        for record in run.records
        if record.get(metric) is not None and record.get(error) is not None
    ]
    if not any(width > 0 for _, _, width in points):
        return []
    steps = [step for step, _, _ in points]
    return [
        go.Scatter(
            x=steps + steps[::-1],
            y=[value + width for _, value, width in points] + [value - width for _, value, width in points[::-1]],
            fill="toself",
            fillcolor=_transparent(color),
            line={"width": 0},
            hoverinfo="skip",
            mode="lines",
            name=text(run.name),
            meta={"run": run.name, "axis": True},
        )
    ]


def _time_shares(runs: Sequence[RunData]) -> go.Figure:
    """One bar a run: data, the step without the penalty, the penalty; medians."""
    rows: list[tuple] = []
    for run in runs:
        data, step = run.median("time/data_ms"), run.median("time/step_ms")
        share = run.median("time/penalty_share")
        if step is not None and share is not None:
            share = max(0.0, share)
            rows.append((run.name, data, step * (1 - share), step * share, None))
        elif step is not None:
            rows.append((run.name, data, None, None, step))
    parts = ("data", "step without the penalty", "penalty", "step (the share was not measured)")
    return _run_bars(rows, parts, unit="ms", stacked=True)


def _memory_bars(runs: Sequence[RunData]) -> go.Figure:
    rows = []
    for run in runs:
        values = [run.best(metric) for metric in _MEMORY]
        if any(value is not None for value in values):
            rows.append((run.name, *values))
    return _run_bars(rows, [METRICS[metric].label for metric in _MEMORY], unit="GiB", stacked=False)


def _run_bars(rows: Sequence[tuple], parts: Sequence[str], *, unit: str, stacked: bool) -> go.Figure:
    traces = []
    for index, (part, color) in enumerate(zip(parts, _PART_COLORS, strict=False), 1):
        mine = [row for row in rows if row[index] is not None]
        for row in mine:  # a trace a run, so that runs can be hidden
            traces.append(
                go.Bar(
                    x=[row[index]],
                    y=[text(row[0])],
                    name=part,
                    legendgroup=part,
                    offsetgroup=None if stacked else part,
                    showlegend=row is mine[0],
                    orientation="h",
                    marker_color=color,
                    meta={"run": row[0]},
                    hovertemplate=f"{part}: %{{x:.4g}} {unit}<extra>%{{y}}</extra>",
                )
            )
    figure = new_figure(traces, x_title=unit, height=max(260, 110 + 26 * len(rows)), legend=True)
    figure.update_layout(barmode="stack" if stacked else "group")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _parallel(sweep: SweepData, colors: Mapping[str, str]) -> go.Figure:
    """A line a trial over one axis a parameter, and one for the metric; drawn as plain lines for their hover."""
    parameters, metric = sweep.content["parameters"], sweep.content["metric"]["name"]
    trials = [trial for trial in sweep.content["trials"] if _value(trial) is not None]
    columns = [[trial["parameters"].get(name) for trial in trials] for name in parameters]
    columns.append([_value(trial) for trial in trials])
    names = [*parameters, metric]
    axes = [_axis(column) for column in columns]
    traces = []
    for index, trial in enumerate(trials):
        said = [f"{text(name)} = {text(short(column[index]))}" for name, column in zip(names, columns, strict=True)]
        run = sweep.run_names.get(trial["trial"])
        title = f"trial {trial['trial']} ({text(trial['state'])})"
        traces.append(
            go.Scatter(
                x=list(range(len(names))),
                y=[positions[index] for positions, _ in axes],
                name=title,
                mode="lines+markers",
                line={"color": colors.get(run or "", PALETTE[7]), "width": 2.5},
                opacity=1.0 if trial["state"] == "done" else 0.4,
                marker={"size": 7},
                meta={"run": run},
                text=["<br>".join(said)] * len(names),
                hovertemplate="%{text}<extra>" + title + "</extra>",
            )
        )
    figure = new_figure(traces, height=420)
    figure.update_layout(
        xaxis={
            "tickvals": list(range(len(names))),
            "ticktext": [text(name).replace(".", ".<br>") for name in names],
            "showgrid": True,
        },
        yaxis={"visible": False, "range": [-0.08, 1.08]},
        hovermode="closest",
    )
    for position, (_, ticks) in enumerate(axes):
        for height, label in ticks:
            figure.add_annotation(
                x=position, y=height, text=text(label), showarrow=False, xanchor="left", xshift=7, font={"size": 11}
            )
    figure.update_xaxes(range=[-0.2, len(names) - 1 + 0.45], ticklabeloverflow="allow")
    return figure


def _axis(column: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Positions in [0, 1] of a column's values, and (position, label) of its ticks."""
    numbers = [value for value in column if isinstance(value, int | float) and not isinstance(value, bool)]
    distinct = sorted(set(numbers)) if len(numbers) == len(column) else []
    if len(distinct) <= 6:  # few values, or names: evenly spaced
        values: list = distinct or sorted({str(value) for value in column})
        place = {str(value): index / max(1, len(values) - 1) for index, value in enumerate(values)}
        return [place[str(value)] for value in column], [(place[str(value)], short(value)) for value in values]
    low, high = distinct[0], distinct[-1]
    if low > 0 and high / low > 50:
        positions = [math.log(value / low) / math.log(high / low) for value in numbers]
        return positions, [(0.0, short(low)), (0.5, short(math.sqrt(low * high))), (1.0, short(high))]
    positions = [(value - low) / (high - low) for value in numbers]
    return positions, [(0.0, short(low)), (0.5, short((low + high) / 2)), (1.0, short(high))]


def metric_label(name: str) -> str:
    """What a metric is, with its unit; its name where it is none of ours."""
    metric = METRICS.get(name, Metric(name))
    return f"{metric.label} ({metric.unit})" if metric.unit else metric.label


def _value(trial: Mapping[str, Any]) -> float | None:
    value = trial.get("value")
    return value if value is not None else trial.get("last_value")


def _hex(color: str) -> str:
    red, green, blue = (int(float(part)) for part in color.removeprefix("rgb(").removesuffix(")").split(","))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _transparent(color: str) -> str:
    return f"rgba({int(color[1:3], 16)},{int(color[3:5], 16)},{int(color[5:7], 16)},0.18)"
