"""Answers as charts, as tables and as texts."""

from __future__ import annotations

from typing import Any

from apps.core.bidi import isolated
from apps.core.charts import (
    BAD,
    PALETTE,
    UNKNOWN,
    bars,
    beside,
    intervals,
    lines,
    ranked,
    shortened,
)
from apps.trajectories.metrics.cells import MEASURES, TOGETHER, titles
from apps.trajectories.metrics.query import BY, OTHER, Answer, Point, Series

KINDS = {
    "auto": "Automatic",
    "line": "Lines",
    "bar": "Bars",
    "ranking": "Ranking",
    "number": "Number",
    "table": "Table",
}
TICKS = {
    "share": {"tickformat": ".0%"},
    "usd": {"tickformat": "$~g"},
    "ms": {"tickformat": "~s", "ticksuffix": "s"},
    "tokens": {"tickformat": "~s"},
    "runs": {"tickformat": "~s"},
}
HOVER = {
    "share": "%{y:.1%}",
    "usd": "$%{y:,.4~f}",
    "ms": "%{y:.3~s}s",
    "tokens": "%{y:,.0f}",
    "runs": "%{y:,.0f}",
}
HEIGHT = 240
OUTCOMES = {"success": 0, "failure": 1, "unknown": 2}  # from the bottom up, on every chart
SHADE = {"p50": PALETTE[5], "p95": PALETTE[0], "p99": PALETTE[7]}


def written(value: float | None, unit: str) -> str:
    """A value with its unit, as people read it."""
    if value is None:
        return "–"
    if unit == "ms":
        return (
            f"{value:,.0f} ms"
            if value < 1000
            else f"{value / 1000:,.{2 if value < 10_000 else 1}f} s"
        )
    if unit == "usd":
        return (
            f"${value:,.2f}"
            if value >= 1 or value == 0
            else f"${value:.4f}"
            if value >= 0.0001
            else f"${value:.2g}"
        )
    return f"{value:.1%}" if unit == "share" else f"{value:,.0f}"


def title_of(answer: Answer, by: str) -> str:
    name = titles()[answer.measure]
    if answer.measure in TOGETHER and by:
        name = MEASURES[answer.series[0].measure].title if answer.series else name
    return f"{name} per {answer.unit}" + (f" by {BY[by].lower()}" if by else "")


def figure(answer: Answer, by: str, kind: str = "auto", height: int = HEIGHT) -> dict | None:
    """A chart; None if there are no runs, or where the kind is not a chart."""
    if not any(one.runs for one in answer.series) or kind in ("number", "table"):
        return None
    measure = MEASURES[answer.series[0].measure]
    if kind == "ranking":
        return _ranking(answer, by)
    shown = (
        sorted(answer.series, key=lambda one: OUTCOMES.get(one.name, 9))
        if by == "outcome"
        else answer.series
    )
    times = [point.at.isoformat() for point in shown[0].points if point.at]
    series = {_unique(answer, one): (times, [point.value for point in one.points]) for one in shown}
    title = title_of(answer, by)
    if kind == "bar" or (kind == "auto" and measure.adds_up) or len(times) == 1:
        colours = _colours(answer, by)
        drawn = bars(
            series, title, stacked=measure.adds_up, height=height, unit=answer.unit, colours=colours
        )
    else:
        drawn = lines(series, title, x="", height=height)
        for trace in drawn["data"]:
            trace["line"]["color"] = _colours(answer, by).get(trace["name"], trace["line"]["color"])
            trace["connectgaps"] = False
    for trace, one in zip(drawn["data"], shown, strict=True):
        trace["customdata"] = [_count(point) for point in one.points]
        trace["hovertemplate"] = (
            f"%{{x}}<br>{trace['name']}: {HOVER[measure.unit]}<br>%{{customdata}}<extra></extra>"
        )
    drawn["layout"]["yaxis"] |= {"rangemode": "tozero", "nticks": 5}
    set_unit(drawn, "y", measure.unit)
    return drawn


def set_unit(drawn: dict, axis: str, unit: str) -> None:
    """Milliseconds are drawn as seconds, to which plotly gives the prefix that suits them: 300ms,
    1.5s.
    """
    drawn["layout"][f"{axis}axis"] |= TICKS[unit]
    for trace in drawn["data"] if unit == "ms" else ():
        trace[axis] = [value if value is None else value / 1000 for value in trace[axis]]


def _unique(answer: Answer, one: Series) -> str:
    """Names come from agents: short, and without what plotly reads as markup; two that look alike
    are numbered.
    """
    name = short(one.name)
    alike = [other for other in answer.series if short(other.name) == name]
    return name if len(alike) == 1 else f"{name} ({alike.index(one) + 1})"


def short(name: str, most: int = 28) -> str:
    """Beside figures, whose order its letters do not turn round."""
    plain = name.replace("<", "‹").replace(">", "›").replace("%{", "%‹").replace("&", "＆")
    return isolated(shortened(plain, most))


def _colours(answer: Answer, by: str) -> dict[str, str]:
    fixed = (
        {"failure": BAD, "success": "#1f9d6b", "unknown": UNKNOWN}
        if by == "outcome"
        else {OTHER: UNKNOWN}
    )
    if not by:
        fixed = dict(SHADE)
        if len(answer.series) == 1:
            return {
                answer.series[0].name: (
                    BAD if answer.measure in ("errors", "failure_rate") else PALETTE[0]
                )
            }
    return fixed


def _count(point: Point) -> str:
    interval = (
        f", 95% interval {point.interval[0]:.1%}–{point.interval[1]:.1%}" if point.interval else ""
    )
    return f"n = {point.n:,}{interval}"


def _ranking(answer: Answer, by: str) -> dict:
    """One dot or bar a group, of the whole time."""
    rows = [one for one in answer.series if one.whole.value is not None]
    measure = MEASURES[answer.series[0].measure]
    names = [_unique(answer, one) for one in rows]
    title = title_of(answer, by).replace(f" per {answer.unit}", "", 1)
    values = [one.whole.value or 0.0 for one in rows]
    if measure.interval:
        low, high = zip(*(one.whole.interval or (0.0, 1.0) for one in rows), strict=True)
        drawn = beside(intervals(names, values, low, high, title), names)
    else:
        drawn = ranked({measure.title: (names, values)}, title)
    drawn["data"][0] |= {
        "customdata": [_count(one.whole) for one in rows],
        "hovertemplate": (
            "%{y}: " + HOVER[measure.unit].replace("{y", "{x") + "<br>%{customdata}<extra></extra>"
        ),
    }
    set_unit(drawn, "x", measure.unit)
    return drawn


def table(answer: Answer) -> list[dict[str, Any]]:
    """One row a series: what it is, over the whole time, of how many runs."""
    return [
        {
            "name": one.name,
            "value": written(one.whole.value, MEASURES[one.measure].unit),
            "n": one.whole.n,
            "interval": _interval(one.whole),
        }
        for one in answer.series
    ]


def _interval(point: Point) -> str:
    return f"[{point.interval[0]:.1%}, {point.interval[1]:.1%}]" if point.interval else ""
