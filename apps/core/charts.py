"""Charts as plotly figures in plain JSON; static/app.js gives them the page's colours."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

PALETTE = ("#6370e8", "#1f9d6b", "#d9822b", "#c6423a", "#8a5cd6", "#2d8fc4", "#98a03a", "#b8578f")
GOOD, BAD, UNKNOWN = "#1f9d6b", "#c6423a", "#8a919e"
MARGIN = {"l": 40, "r": 8, "t": 30, "b": 8}
LEGEND_HEIGHT, ROW_HEIGHT = 20, 26
FEWEST = 7  # units of time that a chart shows
DAY_MS = 86_400_000
MIDNIGHTS = ("", *(f"{sign}00:00:00{zone}" for sign in "T " for zone in ("", "+00:00", "Z")))
UNIT_MS = {
    "minute": 54e3,
    "hour": 54e3 * 60,
    "day": 54e3 * 60 * 24,
    "week": 54e3 * 60 * 24 * 7,
}  # nine tenths of it


def shortened(name: str, most: int = 28) -> str:
    """A name of at most so many characters, without its middle: names of versions and tasks differ
    at their ends.
    """
    if len(name) <= most:
        return name
    head = (most - 1) // 2
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"


def unlike(names: Iterable[str]) -> list[str]:
    """The names, those that are alike numbered: a chart has a category, or a trace, for each."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return made


def in_order(name: str) -> list[tuple[bool, int, str]]:
    """A key to sort names by: “v2” before “v10”."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", name)
    ]


def time_unit(first: datetime | None, last: datetime | None) -> str:
    """What to count by, so that a chart has tens of bars and not hundreds: minute, hour or day."""
    span = (last - first).total_seconds() if first and last else 0
    return "minute" if span < 2 * 3600 else "hour" if span < 36 * 3600 else "day"


def time_range(times: Iterable[Any], unit: str) -> list[str]:
    """What an axis shows of times (or dates, or their ISO texts): at least FEWEST units, so that a
    single bar does not fill the chart.
    """
    known = [datetime.fromisoformat(str(time)) for time in times]
    step, last = timedelta(milliseconds=UNIT_MS[unit] / 0.9), max(known)
    first = min(*known, last - (FEWEST - 1) * step)
    return [(first - step / 2).isoformat(), (last + step / 2).isoformat()]


def days(times: Iterable[Any]) -> list[datetime]:
    """The distinct days, if each of the times is a midnight or a date; otherwise none."""
    texts = {str(time) for time in times}
    whole = texts and all(text[4:8:3] == "--" and text[10:] in MIDNIGHTS for text in texts)
    return sorted(datetime.fromisoformat(text[:10]) for text in texts) if whole else []


def _day_ticks(figure: Any) -> None:
    """Ticks of whole days or weeks, seven or so: Plotly would write 12:00 between them. Lines of
    days begin where bars do.
    """
    known = days(x for trace in figure.data for x in (() if trace.x is None else trace.x))
    if not known:
        return
    weekly = min(((later - day).days for day, later in pairwise(known)), default=1) % 7 == 0
    edges = time_range(known, "week" if weekly else "day")
    first, last = (datetime.fromisoformat(edge) for edge in edges)
    step = math.ceil((last - first).days / FEWEST)
    step = math.ceil(step / 7) * 7 if weekly else step
    figure.update_xaxes(tick0=known[0].isoformat(), dtick=step * DAY_MS, tickformat="%b %-d\n%Y")
    if figure.layout.xaxis.range is None:
        figure.update_xaxes(range=edges)


def lines(
    series: dict[str, tuple[Sequence, Sequence]],
    title: str,
    *,
    x: str = "step",
    y: str = "",
    height: int = 210,
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
    colours: dict[str, str] | None = None,
    unit: str = "",
) -> dict:
    """{name: (xs, ys)} as bars, side by side or stacked; with a time `unit` each as wide as that
    time.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    width = UNIT_MS[unit] / (1 if stacked else max(1, len(series))) if unit else None
    for index, (name, (xs, ys)) in enumerate(series.items()):
        figure.add_trace(
            go.Bar(
                x=list(xs),
                y=list(ys),
                name=name,
                width=width,
                # Plotly centres bars of a given width on their time, one behind the other.
                offset=width * (index - len(series) / 2) if width and not stacked else None,
                marker={"color": (colours or {}).get(name, PALETTE[index % len(PALETTE)])},
            )
        )
    figure.update_layout(barmode="stack" if stacked else "group")
    if unit and any(xs for xs, _ in series.values()):
        figure.update_xaxes(range=time_range([x for xs, _ in series.values() for x in xs], unit))
    counts = [y for _, ys in series.values() for y in ys]
    if counts and all(isinstance(y, int) for y in counts) and max(counts) < 3:
        figure.update_yaxes(dtick=1)  # no ticks of half a run
    return _finish(figure, title, x, y, height, legend=len(series) > 1)


def ranked(
    series: dict[str, tuple[Sequence[str], Sequence[float]]],
    title: str,
    *,
    colours: dict[str, str] | None = None,
) -> dict:
    """{name: (names, values)} with the names beside the chart. Bars; of several series a dot each,
    in the row of their name.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, (label, (names, values)) in enumerate(series.items()):
        colour = (colours or {}).get(label, PALETTE[index % len(PALETTE)])
        common = {"x": list(values), "y": list(names), "name": label}
        figure.add_trace(
            go.Scatter(
                mode="markers",
                marker={"size": 8, "color": colour},
                orientation="h",
                offsetgroup=str(index),  # one above the other where values are the same
                **common,
            )
            if len(series) > 1
            else go.Bar(orientation="h", marker={"color": colour}, **common)
        )
    figure.update_layout(scattermode="group", scattergap=0.3)
    drawn = _finish(figure, title, "", "", ROW_HEIGHT, legend=len(series) > 1)
    return beside(
        drawn, list(dict.fromkeys(name for names, _ in series.values() for name in names))
    )


def beside(drawn: dict, names: Sequence[str]) -> dict:
    """A figure of a row a name, the first on top: beside the chart names have room on a phone,
    too.
    """
    layout = drawn["layout"]
    layout["height"] = layout["margin"]["t"] + 40 + ROW_HEIGHT * len(names)
    layout["xaxis"] |= {"rangemode": "tozero"}
    layout["yaxis"] |= {
        "type": "category",
        "nticks": len(names) + 1,
        "categoryorder": "array",
        "categoryarray": list(names)[::-1],
        "range": [-0.6, len(names) - 0.4],
    }
    return drawn


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
    _day_ticks(figure)
    figure.update_layout(
        template="none",
        title={
            "text": title,
            "font": {"size": 12.5},
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
        },
        height=height,
        margin=MARGIN | {"t": MARGIN["t"] + LEGEND_HEIGHT * legend},
        showlegend=legend,
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "y": 1.01,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
        },
        bargap=0.15,
        xaxis=({"title": {"text": x, "font": {"size": 11}, "standoff": 4}} if x else {})
        | {
            "automargin": True,
            "tickangle": 0,
            "nticks": 7,
        },
        yaxis={
            "title": {"text": y, "font": {"size": 11}},
            "automargin": True,
            "nticks": 6,
            "rangemode": "normal",
        },
    )
    return json.loads(figure.to_json())
