"""Promotions and their effect: marks of charts, and the failure rate before and after the last one.

Runs before and after are not an experiment: what else changed in the same days is listed next to
the rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum
from django.urls import reverse

from apps.core.charts import PALETTE
from apps.core.models import Project
from apps.failures import rates
from apps.failures.changes import Change
from apps.failures.rates import Rate
from apps.promotion.effects.windows import Window, windows
from apps.promotion.models import Promotion
from apps.promotion.policies import PRODUCTION
from apps.trajectories.metrics import figures, query, sketch
from apps.trajectories.metrics.cells import Cell

WINDOW = timedelta(days=7)
MOST_MARKS = 12
LABEL_WIDTH = 0.3  # of the chart's width
NEWCOMER = 0.01  # of the runs: what had less before the promotion, and more after it, is new


@dataclass(frozen=True)
class Side:
    """The runs of some hours before or after a promotion."""

    window: Window
    rate: Rate
    cell: Cell

    @property
    def unknown(self) -> float | None:
        return self.cell.unknown / self.cell.runs if self.cell.runs > 0 else None

    @property
    def latency(self) -> float | None:
        return sketch.percentiles(self.cell.latency, (0.95,))[0]

    @property
    def cost(self) -> float | None:
        """Per run; None unless the cost of all of them is known."""
        cost = self.cell.whole_cost
        return cost.usd / self.cell.runs if cost.is_complete and self.cell.runs > 0 else None


@dataclass(frozen=True)
class Effect:
    move: Promotion
    before: Side
    after: Side
    change: Change
    others: list[str]  # what else changed, as sentences

    @property
    def rows(self) -> list[tuple[str, str, str, float | None]]:
        """(what, before, after, how many times as long or as dear it is) of the other figures."""
        sides = (self.before, self.after)
        return [
            ("Runs", *(f"{side.cell.runs:,}" for side in sides), None),
            ("Unknown outcomes", *(figures.written(side.unknown, "share") for side in sides), None),
            (
                "Latency p95",
                *(figures.written(side.latency, "ms") for side in sides),
                _ratio(*(side.latency for side in sides)),
            ),
            (
                "Mean cost per run",
                *(figures.written(side.cost, "usd") for side in sides),
                _ratio(*(side.cost for side in sides)),
            ),
        ]


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after else None


def promotions(project: Project, since: datetime | None = None) -> list[Promotion]:
    """Moves of the production channel, the newest first."""
    rows = Promotion.objects.filter(channel__project=project, channel__name=PRODUCTION)
    rows = rows.select_related("to_version", "from_version", "by", "channel")
    return list((rows.filter(at__gte=since) if since else rows)[:MOST_MARKS])


def address_of(move: Promotion, project: Project) -> str:
    if move.gate_report_id:
        return reverse("promotion:report", args=[project.slug, move.gate_report_id])
    return reverse("promotion:model", args=[project.slug, move.to_version_id])


def mark(figure: dict, moves: Iterable[Promotion], project: Project) -> dict:
    """A vertical line for each promotion within the chart's times. Its name is a link; for nearby
    ones the last name is shown for all.
    """
    layout = figure["layout"]
    times = [datetime.fromisoformat(at) for trace in figure["data"] for at in trace.get("x") or ()]
    if not times:
        return figure
    first, last = min(times), max(times) + timedelta(days=7)
    shown = [move for move in sorted(moves, key=lambda move: move.at) if first <= move.at <= last]
    if shown and (edges := layout["xaxis"].get("range")):
        edges[1] = max(
            edges[1], (shown[-1].at.replace(tzinfo=None) + (last - first) / 50).isoformat()
        )
    line = {
        "type": "line",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"width": 1.4, "color": PALETTE[4]},
    }
    layout["shapes"] = layout.get("shapes", []) + [
        line | {"x0": move.at.isoformat(), "x1": move.at.isoformat()} for move in shown
    ]
    layout["annotations"] = layout.get("annotations", []) + [
        {
            "x": group[0].at.isoformat(),
            "y": 0.98,
            "yref": "paper",
            "yanchor": "top",
            "xanchor": (
                "right" if group[0].at > last - timedelta(days=7) - (last - first) / 4 else "left"
            ),
            "showarrow": False,
            "font": {"size": 10},
            "bgcolor": "rgba(138, 92, 214, 0.16)",
            "text": (
                f'<a href="{address_of(group[-1], project)}" target="_self">{label(group[-1])}</a>'
                + f" +{len(group) - 1}" * (len(group) > 1)
            ),
        }
        for group in _close(shown, (last - first) * LABEL_WIDTH)
    ]
    return figure


def _close(moves: Iterable[Promotion], within: timedelta) -> list[list[Promotion]]:
    """Groups, the oldest first in each, of which one label is drawn: those that begin within this
    time of a group's first.
    """
    groups: list[list[Promotion]] = []
    for move in moves:
        if groups and move.at - groups[-1][0].at < within:
            groups[-1].append(move)
        else:
            groups.append([move])
    return groups


def label(move: Promotion) -> str:
    return f"{'↩ ' if move.kind == Promotion.Kind.ROLLBACK else ''}{figures.short(str(move.to_version), 18)}"  # noqa: E501


def effect(project: Project, window: timedelta = WINDOW) -> Effect | None:
    """Of the last promotion of production; the runs are those of `effects.windows`."""
    move = next(iter(promotions(project)), None)
    if move is None:
        return None
    before, after = (_side(project, one) for one in windows(move, window.days))
    change = Change(move.at, "promotion", str(move.to_version), before.rate, after.rate)
    return Effect(move, before, after, change, _others(project, before, after))


def _side(project: Project, window: Window) -> Side:
    cell = query.totals(project, window.query).total
    return Side(window, Rate("", window.failures(project.pk).count(), cell.runs), cell)


def _others(project: Project, before: Side, after: Side) -> list[str]:
    """New versions, models and agents in the traffic, and how much more or less of it there is."""
    found = []
    columns = [("agent_name", "Agent"), ("agent_version", "Agent version"), ("model", "Model")]
    for column, title in (
        columns[:1] if after.window.version else columns
    ):  # the others are what was promoted
        was, now = _shares(project, column, before), _shares(project, column, after)
        new = [
            f"{name[:60]} ({share:.0%} of runs)"
            for name, share in now.items()
            if name and share > NEWCOMER > was.get(name, 0)
        ]
        gone = [
            name[:60]
            for name, share in was.items()
            if name and now and share > NEWCOMER > now.get(name, 0)
        ]
        found += [f"{title} new in the traffic: {', '.join(new[:5])}."] * bool(new)
        found += [f"{title} no longer in the traffic: {', '.join(gone[:5])}."] * bool(gone)
    hours = [side.window.hours for side in (before, after)]
    apart = before.window.end <= after.window.begin
    if before.cell.runs and after.cell.runs and all(hours) and apart:
        ratio = (after.cell.runs / hours[1]) / (before.cell.runs / hours[0])
        if not 0.67 < ratio < 1.5:
            found.append(f"Hourly traffic is {ratio:.1f} times what it was.")
    if (
        before.unknown is not None
        and after.unknown is not None
        and abs(after.unknown - before.unknown) > 0.05
    ):
        found.append("The share of unknown outcomes changed, which can hide or reveal failures.")
    return found


def _shares(project: Project, column: str, side: Side) -> dict[str, float]:
    counted = dict(side.window.runs(project.pk).values_list(column).annotate(n=Sum("trajectories")))
    total = sum(counted.values())
    return {name: n / total for name, n in counted.items() if n > 0} if total else {}


def rate_figures(
    project: Project, since: datetime | None
) -> tuple[list[tuple[str, dict]], list[Promotion]]:
    """The charts of the failure rate by time, version and model, marked by the promotions, those of
    failures by mode, version and cluster over time, and the promotions."""
    known = rates.kinds(project, since)
    moves = promotions(project, since)
    found = []
    for id, figure in rates.figures(project, since, known):
        if id == "rate-by-time":
            found.append((id, mark(figure, moves, project)))
        elif id in ("rate-by-version", "rate-by-model"):
            found.append((id, figure))
    found += rates.figures_over_time(project, since) if found else []
    return found, moves
