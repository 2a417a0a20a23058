"""A benchmark's charts: time, memory and error by method, and its targets."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from jacreg_train.experiments.report_data import BenchmarkData
from jacreg_train.experiments.report_style import PALETTE, is_number, new_figure, text


def benchmark_figures(benchmark: BenchmarkData) -> list[tuple[str, go.Figure]]:
    """A benchmark's time, memory and error by method, and its targets."""
    rows = benchmark.content["rows"]
    figures = [
        ("Time over that of a plain gradient", _bars_by_method(rows, "time_ratio", "time ratio")),
        ("Memory", _bars_by_method(rows, "memory_mib", "MiB")),
        ("Arithmetic over that of a plain gradient", _bars_by_method(rows, "flop_ratio", "FLOP ratio")),
        ("Compile time", _bars_by_method(rows, "compile_s", "s")),
        ("Time ratio against the batch size", _time_by_size(rows)),
        ("Error against time", _error_by_time(rows)),
        ("Targets", _targets(benchmark.content.get("targets") or [])),
    ]
    return [(title, figure) for title, figure in figures if figure.data]


def _bars_by_method(rows: Sequence[Mapping[str, Any]], field: str, title: str) -> go.Figure:
    cases = list(dict.fromkeys(_case(row) for row in rows))
    traces = []
    for case, color in zip(cases, cycle(PALETTE), strict=False):
        mine = [row for row in rows if _case(row) == case and is_number(row.get(field))]
        if mine:
            traces.append(
                go.Bar(
                    x=[row[field] for row in mine],
                    y=[text(row.get("method")) for row in mine],
                    name=text(case),
                    orientation="h",
                    marker_color=color,
                    hovertemplate=f"%{{y}}: %{{x:.4g}} {title}",
                )
            )
    methods = len({row.get("method") for row in rows})
    figure = new_figure(traces, x_title=title, height=max(280, 120 + 14 * methods * len(cases)), legend=True)
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _time_by_size(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    traces = []
    groups = list(dict.fromkeys((row.get("model"), row.get("method")) for row in rows))
    for (model, method), color in zip(groups, cycle(PALETTE), strict=False):
        points = sorted(
            (row["n"], row["time_ratio"])
            for row in rows
            if (row.get("model"), row.get("method")) == (model, method)
            and is_number(row.get("n"))
            and is_number(row.get("time_ratio"))
        )
        if len(points) > 1:
            traces.append(
                go.Scatter(
                    x=[size for size, _ in points],
                    y=[ratio for _, ratio in points],
                    mode="lines+markers",
                    name=text(f"{model}, {method}"),
                    line={"color": color},
                    hovertemplate="n = %{x}: %{y:.3g}",
                )
            )
    return new_figure(traces, x_title="examples n", y_title="time ratio", legend=True)


def _error_by_time(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    points = [row for row in rows if is_number(row.get("relative_error")) and row["relative_error"] > 0]
    points = [row for row in points if is_number(row.get("time_ratio"))]
    methods = list(dict.fromkeys(row.get("method") for row in points))
    traces = [
        go.Scatter(
            x=[row["time_ratio"] for row in points if row.get("method") == method],
            y=[row["relative_error"] for row in points if row.get("method") == method],
            mode="markers",
            name=text(method),
            marker={"color": color, "size": 9},
            text=[text(_case(row)) for row in points if row.get("method") == method],
            hovertemplate="%{text}<br>time ratio %{x:.3g}, error %{y:.2g}",
        )
        for method, color in zip(methods, cycle(PALETTE), strict=False)
    ]
    figure = new_figure(traces, x_title="time ratio", y_title="relative error", legend=True)
    figure.update_yaxes(type="log")
    return figure


def _targets(targets: Sequence[Mapping[str, Any]]) -> go.Figure:
    rows = [each for each in targets if is_number(each.get("ratio")) and is_number(each.get("target"))]
    if not rows:
        return go.Figure()
    names = [text(row.get("name")) for row in rows]
    reached = [row["ratio"] <= row["target"] for row in rows]
    measured = go.Bar(
        x=[row["ratio"] for row in rows],
        y=names,
        orientation="h",
        name="measured",
        marker_color=[PALETTE[2] if each else PALETTE[3] for each in reached],
        hovertemplate="%{y}: %{x:.3g}<extra>measured</extra>",
    )
    target = go.Scatter(
        x=[row["target"] for row in rows],
        y=names,
        mode="markers",
        name="target",
        marker={"symbol": "line-ns-open", "size": 18, "color": PALETTE[7], "line": {"width": 3}},
        hovertemplate="%{y}: %{x:.3g}<extra>target</extra>",
    )
    return new_figure([measured, target], x_title="ratio", height=max(260, 120 + 30 * len(rows)), legend=True)


def _case(row: Mapping[str, Any]) -> str:
    return f"{row.get('model')}, n = {row.get('n')}"
