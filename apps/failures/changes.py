"""What changed in production and what the failure rate did: each new agent version or model against the one before it.

A change is seen in the runs themselves, by the first of them, so it needs nobody to announce a release. Runs before and
after are not an experiment: traffic may have changed, too.
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

MOST = 8  # changes shown, the newest
LABEL_WIDTH, TOP = 0.3, 44  # of the chart's width; pixels above the lines


@dataclass(frozen=True)
class Change:
    """A version or model that began at an hour, with the failure rates of the one before and of its own."""

    at: datetime
    kind: str
    name: str
    before: Rate
    after: Rate

    @property
    def difference(self) -> float | None:
        """Rate after less rate before; None where one side has no runs."""
        return self.after.rate - self.before.rate if self.after.n and self.before.n else None

    @property
    def interval(self) -> tuple[float, float]:
        return self.interval_at(LEVEL)

    def interval_at(self, level: float) -> tuple[float, float]:
        """Of the difference; both sides have runs."""
        return newcombe((self.before.failed, self.before.n), (self.after.failed, self.after.n), level)

    @property
    def verdict(self) -> str:
        """“better” or “worse” where the interval leaves out 0, else “unclear”."""
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
    """When something was first seen, its runs and its failures."""

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


def changes(project: Project, since: datetime | None, known: Iterable[Kind] | None = None) -> list[Change]:
    """The newest `MOST` changes since then, the newest first. Rates are of the runs since the day of then.

    `known` are `rates.kinds` of the same project and time, where they were read.
    """
    agents = _agents(rates.kinds(project, since) if known is None else known)
    found = [change for name, agent in agents.items() for change in _of(agent, name if len(agents) > 1 else "")]
    shown = [change for change in found if since is None or change.at >= since]
    return sorted(shown, key=lambda change: (change.at, change.kind, change.name), reverse=True)[:MOST]


def _agents(known: Iterable[Kind]) -> Mapping[str, Agent]:
    agents: dict[str, Agent] = defaultdict(Agent)
    for kind in known:
        here = kind.first, kind.runs, kind.failed
        agents[kind.agent].version[kind.version].add(*here)
        agents[kind.agent].model[kind.model].add(*here)
    return agents


def _of(agent: Agent, name: str) -> Iterable[Change]:
    """The changes of one agent. A model that came with a new version is that version's doing."""
    versions = list(_pairs("version", agent.version, name))
    yield from versions
    released = {change.at for change in versions}
    yield from (change for change in _pairs("model", agent.model, name) if change.at not in released)


def _pairs(kind: str, seen: Mapping[str, Seen], agent: str) -> Iterable[Change]:
    """Each that has a name against the one that began before it."""
    known = sorted((item.first, name) for name, item in seen.items() if name and item.first)
    for (_, before), (at, after) in pairwise(known):
        title = " ".join(filter(None, (agent, after)))
        yield Change(at, kind, title, _rate(before, seen[before]), _rate(after, seen[after]))


def _rate(name: str, seen: Seen) -> Rate:
    return Rate(name, seen.failed, seen.runs)


def marked(figure: dict, shown: Iterable[Change]) -> dict:
    """The chart over time with a line where each change began; those close together share a name."""
    times = [datetime.fromisoformat(at) for at in figure["data"][-1]["x"]]
    close = (times[-1] - times[0]) * LABEL_WIDTH
    groups: list[list[Change]] = []
    for change in sorted(shown, key=lambda change: change.at):
        if groups and change.at - groups[-1][0].at < close:
            groups[-1].append(change)
        else:
            groups.append([change])
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot", "color": UNKNOWN}}
    starts = sorted({change.at.isoformat() for group in groups for change in group})
    figure["layout"]["shapes"] = [line | {"x0": at, "x1": at} for at in starts]
    figure["layout"]["annotations"] = [_label(group, times[0] + (times[-1] - times[0]) / 2) for group in groups]
    if groups:  # room for the names, between the title and the lines
        figure["layout"]["margin"] = figure["layout"].get("margin", {}) | {"t": TOP}
    return figure


def _label(group: list[Change], middle: datetime) -> dict:
    """The names at the first line of a group, to that side of it where there is more room."""
    names = rates.short(", ".join(dict.fromkeys(change.name for change in group)))
    side = "left" if group[0].at < middle else "right"
    place = {"x": group[0].at.isoformat(), "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": side}
    return place | {"text": names, "showarrow": False, "font": {"size": 10}}
