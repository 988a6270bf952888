"""Charts as plotly figures in plain JSON; static/app.js gives them the page's colours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

PALETTE = ("#6370e8", "#1f9d6b", "#d9822b", "#c6423a", "#8a5cd6", "#2d8fc4", "#98a03a", "#b8578f")
MARGIN = {"l": 44, "r": 12, "t": 28, "b": 36}


def lines(
    series: dict[str, tuple[Sequence, Sequence]], title: str, *, x: str = "step", y: str = "", height: int = 250
) -> dict:
    """{name: (xs, ys)} as one chart of lines."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, (xs, ys)) in enumerate(series.items()):
        figure.add_trace(
            go.Scatter(
                x=list(xs),
                y=list(ys),
                name=name,
                mode="lines+markers",
                marker={"size": 4},
                line={"color": PALETTE[index % len(PALETTE)], "width": 1.8},
            )
        )
    return _finish(figure, title, x, y, height, legend=len(series) > 1)


def bars(
    series: dict[str, tuple[Sequence, Sequence]],
    title: str,
    *,
    x: str = "",
    y: str = "",
    height: int = 250,
    stacked: bool = False,
) -> dict:
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (name, (xs, ys)) in enumerate(series.items()):
        figure.add_trace(go.Bar(x=list(xs), y=list(ys), name=name, marker={"color": PALETTE[index % len(PALETTE)]}))
    figure.update_layout(barmode="stack" if stacked else "group")
    return _finish(figure, title, x, y, height, legend=len(series) > 1)


def intervals(
    names: Sequence[str],
    means: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
    title: str,
    *,
    height: int = 250,
) -> dict:
    """Points with their interval, one a name."""
    import plotly.graph_objects as go

    figure = go.Figure(
        go.Scatter(
            x=list(means),
            y=list(names),
            mode="markers",
            marker={"size": 8, "color": PALETTE[0]},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [h - m for h, m in zip(highs, means, strict=True)],
                "arrayminus": [m - low for low, m in zip(lows, means, strict=True)],
                "thickness": 1.4,
            },
        )
    )
    return _finish(figure, title, "", "", height, legend=False)


def _finish(figure: Any, title: str, x: str, y: str, height: int, legend: bool) -> dict:
    figure.update_layout(
        template="none",
        title={"text": title, "font": {"size": 13}, "x": 0.01, "xanchor": "left"},
        height=height,
        margin=MARGIN,
        showlegend=legend,
        legend={"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right"},
        xaxis={"title": {"text": x}, "automargin": True},
        yaxis={"title": {"text": y}, "automargin": True},
    )
    return json.loads(figure.to_json())
