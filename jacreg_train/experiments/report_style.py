"""The look that all charts of a report share, and how strings and numbers get into them."""

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

# Okabe and Ito's colours: apart for colour-blind eyes, readable on light and on dark.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a7a00", "#7f7f7f")


def new_figure(
    traces: Sequence[Any],
    *,
    x_title: str = "",
    y_title: str = "",
    height: int = 320,
    tickformat: str = "",
    legend: bool = False,
) -> go.Figure:
    """A chart of these traces; colours of text and grid are the page's, which knows light from dark."""
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 10, "r": 14, "t": 8, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=legend,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "font": {"size": 11}},
        hovermode="closest",
        font={"size": 12},
        bargap=0.25,
    )
    figure.update_xaxes(title={"text": x_title, "standoff": 6}, automargin=True, zeroline=False, tickformat=tickformat)
    figure.update_yaxes(title={"text": y_title, "standoff": 6}, automargin=True, zeroline=False)
    return figure


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def text(value: Any) -> str:
    """A string from a run as Plotly shows it unchanged: it reads a little HTML in labels."""
    return html.escape(str(value), quote=False)  # Plotly knows the entities of <, > and & only


def short(value: Any) -> str:
    """A value in few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
