"""An alert's chart: what it measured, and the line or the usual range that it must not leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from apps.core.charts import BAD, PALETTE, UNKNOWN, lines
from apps.trajectories.alerts import MEASURES, crosses, limit_of
from apps.trajectories.metrics.figures import HOVER, set_unit
from apps.trajectories.models import Alert, AlertPoint

HEIGHT = 230
LEAST_SHOWN = timedelta(hours=2)
SHADE = "rgba(138, 145, 158, 0.16)"


def figure(
    alert: Alert, points: Sequence[AlertPoint], link: Callable[[AlertPoint], str]
) -> dict | None:
    """Each point leads to its rows (`link`). None if there is nothing to draw yet."""
    if all(point.value is None for point in points):
        return None
    times = [point.at.isoformat() for point in points]
    first, last = _times_shown(points)
    limits = (
        _usual(points) if alert.condition == Alert.Condition.UNUSUAL else _line(alert, first, last)
    )
    measured = (times, [point.value for point in points])
    drawn = lines(limits | {alert.get_measure_display(): measured}, "", x="", height=HEIGHT)
    *others, trace = drawn["data"]
    for other in others:
        other |= {"mode": "lines", "hoverinfo": "skip"}
        other["line"] |= {"color": BAD if alert.line is not None else UNKNOWN, "dash": "dash"}
    if len(others) > 1:
        others[1] |= {"fill": "tonexty", "fillcolor": SHADE}
    trace |= _drawn(alert, points, link)
    drawn["layout"]["xaxis"] |= {"type": "date", "range": [first, last]}
    _scale(alert, drawn)
    return drawn


def _times_shown(points: Sequence[AlertPoint]) -> tuple[str, str]:
    last = points[-1].at
    first = min(points[0].at, last - LEAST_SHOWN)
    edge = (last - first) / 60
    return (first - edge).isoformat(), (last + edge).isoformat()


def _line(alert: Alert, first: str, last: str) -> dict:
    if alert.line is None:
        return {}
    return {limit_of(alert): ([first, last], [alert.line] * 2)}


def _usual(points: Sequence[AlertPoint]) -> dict:
    known = [point for point in points if point.low is not None]
    times = [point.at.isoformat() for point in known]
    sides = {
        "Usual from": [point.low for point in known],
        "Usual to": [point.high for point in known],
    }
    return {name: (times, values) for name, values in sides.items()} if known else {}


def _drawn(alert: Alert, points: Sequence[AlertPoint], link: Callable[[AlertPoint], str]) -> dict:
    """The measured values: red where they crossed."""
    is_bad = [point.value is not None and crosses(alert, point.value, point) for point in points]
    unit = MEASURES[alert.measure].unit
    hover = HOVER[unit] if unit else "%{y:.4~g}"
    return {
        "connectgaps": False,
        "line": {"color": PALETTE[0], "width": 1.8},
        "marker": {"size": 5, "color": [BAD if bad else PALETTE[0] for bad in is_bad]},
        "meta": {"links": [link(point) for point in points]},
        "customdata": [f"n = {point.n:,}" for point in points],
        "hovertemplate": f"%{{x}}<br>{hover}<br>%{{customdata}}<extra></extra>",
    }


def _scale(alert: Alert, drawn: dict) -> None:
    drawn["layout"]["yaxis"] |= {"nticks": 5}
    if unit := MEASURES[alert.measure].unit:
        drawn["layout"]["yaxis"] |= {"rangemode": "tozero"}
        set_unit(drawn, "y", unit)
    drawn["layout"]["margin"] |= {"t": 30, "b": 22}
