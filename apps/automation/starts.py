"""The triggers of flows, evaluated every few seconds. Of a thousand flows nearly all are not due,
and together they cost one query.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, Sum

from apps.automation import specs
from apps.automation.models import Flow
from apps.automation.specs import FlowSpec
from apps.core.models import Project, key_digest
from apps.failures.changes import Change
from apps.failures.models import DailyRuns, Failure, FailureCluster
from apps.failures.rates import Rate
from apps.trajectories.ids import floor_of

# Confidence level of one daily check: without a change, at most 4% of flows see a rise in 30 checks
# (bench/flows.py).
LOOK_LEVEL = 0.9973
LISTED, MOST_LISTED = 200, 5000  # newest failures read at once for all flows of a project
EVERY = timedelta(minutes=5)  # interval between checks of triggers that are not schedules


@dataclass(frozen=True)
class Cause:
    """What started a run: its trigger, and the sentence that its page shows."""

    by: str
    sentence: str
    seen: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "sentence": self.sentence,
            **({"seen": self.seen} if self.seen else {}),
        }


@dataclass(frozen=True)
class Known:
    """A project's numbers at some time, each read once for all its flows. `at` is now, or a time in
    the past for a dry run.
    """

    project: Project
    at: datetime

    @cached_property
    def _failures(self) -> dict[tuple[datetime, datetime, str, str], int]:
        return {}

    def failures(self, since: datetime, until: datetime, mode: str, cluster: str = "") -> int:
        """The number of standing failures in runs that began in that time."""
        asked = since, until, mode, cluster
        if asked not in self._failures:
            rows = self._standing(until, mode, cluster).filter(trajectory_id__gte=floor_of(since))
            self._failures[asked] = rows.count()
        return self._failures[asked]

    def _standing(self, until: datetime, mode: str, cluster: str) -> QuerySet[Failure]:
        rows = (
            Failure.objects.filter(project=self.project, trajectory_id__lt=floor_of(until))
            .standing()
            .order_by()
        )
        rows = rows.filter(mode__slug=mode) if mode else rows
        return rows.filter(cluster=cluster) if cluster else rows

    def cluster_name(self, pk: str) -> str:
        found = FailureCluster.objects.filter(project=self.project, pk=pk).first()
        return found.name if found else pk

    @cached_property
    def _newest(self) -> dict[tuple[str, str], tuple[int, list[UUID]]]:
        """{(mode, cluster): (number needed, ids of the newest failures)}"""
        return {}

    def has_failures(self, count: int, since: datetime, mode: str, cluster: str) -> bool:
        """Whether at least `count` failures are in runs that began since then. Since flows need
        few, the newest are read once for all of them.
        """
        asked, found = self._newest.get((mode, cluster), (0, []))
        if asked < count:
            asked = max(count, LISTED)
            rows = (
                self._standing(self.at, mode, cluster)
                .order_by("-trajectory_id")
                .values_list("trajectory_id", flat=True)
            )
            found = list(rows[:asked])
            self._newest[mode, cluster] = asked, found
        return len(found) >= count and found[count - 1] >= floor_of(since)

    @cached_property
    def _runs(self) -> dict[tuple[date, int], int]:
        return {}

    def rate(self, first: date, days: int, mode: str) -> Rate:
        """The failure rate of runs in `days` whole days (UTC) starting with `first`."""
        begin = datetime(first.year, first.month, first.day, tzinfo=UTC)
        end = begin + timedelta(days=days)
        if (first, days) not in self._runs:
            rows = DailyRuns.objects.filter(
                project=self.project, day__gte=first, day__lt=end.date()
            ).order_by()
            self._runs[first, days] = rows.aggregate(n=Sum("runs"))["n"] or 0
        return Rate(
            mode or "all failures", self.failures(begin, end, mode), self._runs[first, days]
        )

    @cached_property
    def versions(self) -> dict[str, tuple[str, int]]:
        """{name as in `Flow.seen`: (label, number of runs)} for all versions and models seen in
        production by then.
        """
        return names_of(DailyRuns.objects.filter(project=self.project, first__lte=self.at))


def cause_of(flow: Flow, spec: FlowSpec, since: datetime, known: Known) -> Cause | None:
    """The first trigger other than a schedule that has fired since the flow last began or was
    saved; None if there is none.
    """
    for start in spec.starts:
        found: Cause | None = None
        if isinstance(start, specs.NewFailures):
            found = _new_failures(start, since, known)
        elif isinstance(start, specs.FailureRate):
            found = _failure_rate(start, since, known)
        elif isinstance(start, specs.NewVersion):
            found = _new_version(start, flow.seen, known)
        if found:
            return found
    return None


def _new_failures(start: specs.NewFailures, since: datetime, known: Known) -> Cause | None:
    many = start.at_least > MOST_LISTED
    if not many and not known.has_failures(start.at_least, since, start.mode, start.cluster):
        return None
    count = known.failures(since, known.at, start.mode, start.cluster)
    if count < start.at_least:
        return None
    which = f"of {start.mode} " if start.mode else ""
    which += f"in the cluster “{known.cluster_name(start.cluster)}” " if start.cluster else ""
    return Cause(
        "new_failures",
        f"{count:,} failures {which}in runs since {since:%F %H:%M} UTC, at least"
        f" {start.at_least:,}",
        {"failures": count},
    )


def _failure_rate(start: specs.FailureRate, since: datetime, known: Known) -> Cause | None:
    """Checked once per day, at a level that allows for thirty checks: at 95% a third of all flows
    would find a rise by chance in a month.
    """
    today = known.at.astimezone(UTC).date()
    if since.astimezone(UTC).date() >= today:
        return None
    after = known.rate(today - timedelta(days=start.days), start.days, start.mode)
    before = known.rate(today - timedelta(days=2 * start.days), start.days, start.mode)
    change = Change(known.at, "rate", after.name, before, after)
    if change.difference is None:
        return None
    low, high = change.interval_at(LOOK_LEVEL)
    if low <= start.rise:
        return None
    sentence = (
        f"The share of runs with {after.name} rose from {before.rate:.1%} ({before.failed:,} of"
        f" {before.n:,}) to {after.rate:.1%} ({after.failed:,} of {after.n:,}),"
        f" {change.difference_text} [{100 * low:+.1f}, {100 * high:+.1f}] at {LOOK_LEVEL:.1%}, over"
        f" {start.days} days"
    )
    return Cause(
        "failure_rate",
        sentence,
        {"before": [before.failed, before.n], "after": [after.failed, after.n]},
    )


def _new_version(start: specs.NewVersion, seen: Iterable[str], known: Known) -> Cause | None:
    before = set(seen)
    for name, (words, runs) in sorted(known.versions.items()):
        if name.startswith(f"{start.of}:") and runs >= start.runs and name not in before:
            return Cause(
                "new_version", f"{words} is new in production, with {runs:,} runs", {"name": name}
            )
    return None


def names_of(rows: QuerySet[DailyRuns]) -> dict[str, tuple[str, int]]:
    """{name: (label, runs)} of the agent versions and models in these days. The name keeps agent
    and version apart: “a b” 1 is not “a” b 1.
    """
    found: dict[str, tuple[str, int]] = {}
    counted = (
        rows.order_by().values_list("agent_name", "agent_version", "model").annotate(n=Sum("runs"))
    )
    for agent, version, model, runs in counted:
        both = (
            f"version:{json.dumps([agent, version])}" if version else "",
            f"{agent} {version}".strip(),
        )
        for name, words in (both, (f"model:{model}" if model else "", model)):
            if name:
                found[name] = words, found.get(name, ("", 0))[1] + runs
    return found


def names_known(project: Project, before: datetime | None = None) -> list[str]:
    """All versions and models that a project has run (before some time): those are not new."""
    rows = DailyRuns.objects.filter(project=project)
    return sorted(names_of(rows.filter(first__lt=before) if before else rows))


def next_time(spec: FlowSpec, after: datetime) -> datetime | None:
    return next(spec.times(after), None)


def coming(spec: FlowSpec, after: datetime, count: int = 5) -> list[datetime]:
    return list(islice(spec.times(after), count))


def new_secret() -> tuple[str, str]:
    """(a new webhook secret, its digest). The secret is shown once."""
    secret = f"flow_{secrets.token_urlsafe(32)}"
    return secret, key_digest(secret)


def fits(flow: Flow, secret: str) -> bool:
    return bool(flow.secret_digest) and hmac.compare_digest(flow.secret_digest, key_digest(secret))
