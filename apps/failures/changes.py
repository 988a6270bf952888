"""Changes in production and their effect on the failure rate: each new agent version or model
compared with the previous one.

A change is detected by its first run, so releases need not be announced. Before and after are not
an experiment: traffic may have changed, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from apps.core.charts import UNKNOWN
from apps.core.intervals import LEVEL, newcombe
from apps.core.models import Project
from apps.failures import rates
from apps.failures.rates import Kind, Rate

MOST = 8  # changes shown, newest first
LABEL_WIDTH, TOP = 0.3, 44  # share of the chart's width; pixels above the lines


@dataclass(frozen=True)
class Change:
    """A version or model that started at some hour, with the failure rates before and after it."""

    at: datetime
    kind: str
    name: str
    before: Rate
    after: Rate

    @property
    def difference(self) -> float | None:
        """Rate after minus rate before; None if one side has no runs."""
        return self.after.rate - self.before.rate if self.after.n and self.before.n else None

    @property
    def interval(self) -> tuple[float, float]:
        return self.interval_at(LEVEL)

    def interval_at(self, level: float) -> tuple[float, float]:
        """Interval of the difference; both sides have runs."""
        return newcombe(
            (self.before.failed, self.before.n), (self.after.failed, self.after.n), level
        )

    @property
    def verdict(self) -> str:
        """“better” or “worse” if the interval excludes 0, otherwise “unclear”."""
        if self.difference is None:
            return "unclear"
        low, high = self.interval
        return "better" if high < 0 else "worse" if low > 0 else "unclear"

    @property
    def difference_text(self) -> str:
        """In percentage points."""
        return "" if self.difference is None else f"{100 * self.difference:+.1f} pp"

    @property
    def interval_text(self) -> str:
        low, high = self.interval
        return f"[{100 * low:+.1f}, {100 * high:+.1f}]"


@dataclass
class Seen:
    """When something was first seen, with its runs and failures."""

    first: datetime | None = None
    runs: int = 0
    failed: int = 0

    def add(self, first: datetime, runs: int, failed: int) -> None:
        self.first = first if self.first is None else min(self.first, first)
        self.runs, self.failed = self.runs + runs, self.failed + failed


@dataclass
class Agent:
    """One agent's versions and models."""

    version: dict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    model: dict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))


def changes(
    project: Project, since: datetime | None, known: Iterable[Kind] | None = None
) -> list[Change]:
    """The newest `MOST` changes since then, newest first. Rates cover the runs since that day.

    `known` are `rates.kinds` of the same project and time, if already read.
    """
    agents = _agents(rates.kinds(project, since) if known is None else known)
    found = [
        change
        for name, agent in agents.items()
        for change in _of(agent, name if len(agents) > 1 else "")
    ]
    shown = [change for change in found if since is None or change.at >= since]
    return sorted(shown, key=lambda change: (change.at, change.kind, change.name), reverse=True)[
        :MOST
    ]


def _agents(known: Iterable[Kind]) -> Mapping[str, Agent]:
    agents: dict[str, Agent] = defaultdict(Agent)
    for kind in known:
        here = kind.first, kind.runs, kind.failed
        agents[kind.agent].version[kind.version].add(*here)
        agents[kind.agent].model[kind.model].add(*here)
    return agents


def _of(agent: Agent, name: str) -> Iterable[Change]:
    """The changes of one agent. A model that came with a new version counts as part of that
    version.
    """
    versions = list(_pairs("version", agent.version, name))
    yield from versions
    released = {change.at for change in versions}
    yield from (
        change for change in _pairs("model", agent.model, name) if change.at not in released
    )


def _pairs(kind: str, seen: Mapping[str, Seen], agent: str) -> Iterable[Change]:
    """Pair each name with the one that started before it."""
    known = sorted((item.first, name) for name, item in seen.items() if name and item.first)
    for (_, before), (at, after) in pairwise(known):
        title = " ".join(filter(None, (agent, after)))
        yield Change(at, kind, title, _rate(before, seen[before]), _rate(after, seen[after]))


def _rate(name: str, seen: Seen) -> Rate:
    return Rate(name, seen.failed, seen.runs)


def marked(figure: dict, shown: Iterable[Change]) -> dict:
    """The chart over time with a line where each change began; nearby changes share a label."""
    times = [datetime.fromisoformat(at) for at in figure["data"][-1]["x"]]
    close = (times[-1] - times[0]) * LABEL_WIDTH
    groups: list[list[Change]] = []
    for change in sorted(shown, key=lambda change: change.at):
        if groups and change.at - groups[-1][0].at < close:
            groups[-1].append(change)
        else:
            groups.append([change])
    line = {
        "type": "line",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"width": 1, "dash": "dot", "color": UNKNOWN},
    }
    starts = sorted({change.at.isoformat() for group in groups for change in group})
    figure["layout"]["shapes"] = [line | {"x0": at, "x1": at} for at in starts]
    figure["layout"]["annotations"] = [
        _label(group, times[0] + (times[-1] - times[0]) / 2) for group in groups
    ]
    if groups:  # room for the labels, between the title and the lines
        figure["layout"]["margin"] = figure["layout"].get("margin", {}) | {"t": TOP}
    return figure


def _label(group: list[Change], middle: datetime) -> dict:
    """The label at the first line of a group, on the side with more room."""
    names = rates.short(", ".join(dict.fromkeys(change.name for change in group)))
    side = "left" if group[0].at < middle else "right"
    place = {
        "x": group[0].at.isoformat(),
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": side,
    }
    return place | {"text": names, "showarrow": False, "font": {"size": 10}}
