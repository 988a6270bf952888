"""How many there are, and how that goes over time, without reading all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Max, Min, QuerySet, Sum
from django.db.models.functions import Trunc

from apps.core.charts import BAD, GOOD, PALETTE, UNKNOWN, bars, lines
from apps.core.models import Project
from apps.core.timeouts import TooLong, patience
from apps.trajectories.filters import apply_filters, bounds, dimensions
from apps.trajectories.metrics.figures import set_unit
from apps.trajectories.models import HourlyCount, MetricCell, Outcome
from apps.trajectories.rollups import DIMENSIONS, SUMS, rollup_unit

COUNTED = 10_000
COUNT_MS = 1_500
COLOURS = {Outcome.SUCCESS: GOOD, Outcome.FAILURE: BAD, Outcome.UNKNOWN: UNKNOWN}
MEASURES = {"outcome": "Outcomes", "latency": "Latency", "tokens": "Tokens", "cost": "Cost"}
HEIGHT = 176


@dataclass(frozen=True, slots=True)
class Total:
    """`n` of them, or at least `n` where `more`; None if counting was given up."""

    n: int | None
    more: bool = False

    def __str__(self) -> str:
        return "many" if self.n is None else f"{self.n:,}{'+' * self.more}"


def total(project: Project, given: Mapping[str, str]) -> Total:
    """Exact from the roll-ups where they know the filters, else counted up to COUNTED."""
    known, others = dimensions(given)
    if not others and bounds(given) == (None, None):
        return Total(_of_all_time(project, known))
    rows = apply_filters(project.trajectories.all(), given).order_by()
    try:
        with patience(COUNT_MS):
            n = rows[: COUNTED + 1].count()
    except TooLong:
        return Total(None)
    return Total(min(n, COUNTED), n > COUNTED)


def _of_all_time(project: Project, known: Mapping[str, str]) -> int:
    """By days, which have one row for each value of a dimension, where one is asked for at most:
    hours have one for each combination, and in years these are millions.
    """
    if len(known) > 1:
        return _hours(project, known).aggregate(n=Sum("trajectories"))["n"] or 0
    value = {"dimension": "", "value": ""}
    for dimension, column in DIMENSIONS.items():
        if column in known:
            value = {"dimension": dimension, "value": known[column]}
    days = MetricCell.objects.filter(project=project, unit="day", **value)
    return days.aggregate(n=Sum("runs"))["n"] or 0


def _hours(project: Project, known: Mapping[str, str]) -> QuerySet[HourlyCount]:
    return HourlyCount.objects.filter(project=project, **known)


def trend(project: Project, given: Mapping[str, str], measure: str) -> dict | None:
    """The roll-ups by time as a chart; None if there is nothing. Filters they do not know are left
    out.
    """
    known, _ = dimensions(given)
    begin, end = bounds(given)
    rows = _hours(project, known).filter(trajectories__gt=0)
    if begin:
        rows = rows.filter(hour__gte=begin.replace(minute=0, second=0, microsecond=0))
    if end:
        rows = rows.filter(hour__lt=end)
    if not (begin and end):
        seen = rows.aggregate(first=Min("hour"), last=Max("hour"))
        begin, end = begin or seen["first"], end or seen["last"]
    unit = rollup_unit(begin, end)
    sums = rows.annotate(at=Trunc("hour", unit)).values(
        "at", *(["outcome_status"] if measure == "outcome" else [])
    )
    found = list(sums.annotate(**{f"sum_{name}": Sum(name) for name in SUMS}).order_by("at"))
    if not found:
        return None
    figure = _figure(found, measure, unit)
    figure["layout"]["margin"] |= {"b": 22}
    figure["layout"]["yaxis"] |= {"nticks": 4, "rangemode": "tozero"}
    return figure


def _figure(found: list[dict[str, Any]], measure: str, unit: str) -> dict:
    at = [row["at"].isoformat() for row in found]
    if measure == "outcome":
        series = {
            str(status): (
                [row["at"].isoformat() for row in found if row["outcome_status"] == status],
                [row["sum_trajectories"] for row in found if row["outcome_status"] == status],
            )
            for status in COLOURS
        }
        series = {name: values for name, values in series.items() if values[0]}
        colours = {str(status): colour for status, colour in COLOURS.items()}
        return bars(
            series,
            f"Trajectories per {unit}",
            stacked=True,
            height=HEIGHT,
            colours=colours,
            unit=unit,
        )
    if measure == "tokens":
        split = {
            "input": lambda row: row["sum_input_tokens"] - row["sum_cache_read_tokens"],
            "cached input": lambda row: row["sum_cache_read_tokens"],
            "output": lambda row: row["sum_output_tokens"],
        }
        series = {name: (at, [of(row) for row in found]) for name, of in split.items()}
        if not any(series["cached input"][1]):
            del series["cached input"]
        return bars(series, f"Tokens per {unit}", stacked=True, height=HEIGHT, unit=unit)
    if measure == "cost":
        costs = (at, [round(row["sum_cost_usd"], 6) for row in found])
        return bars(
            {"cost": costs},
            f"Cost per {unit}{', at least' * any(row['sum_unpriced'] for row in found)}",
            y="US $",
            height=HEIGHT,
            colours={"cost": PALETTE[4]},
            unit=unit,
        )
    means = [
        row["sum_latency_ms"] / row["sum_with_latency"] if row["sum_with_latency"] else None
        for row in found
    ]
    drawn = lines({"mean": (at, means)}, f"Mean latency per {unit}", x="", height=HEIGHT)
    set_unit(drawn, "y", "ms")
    return drawn
