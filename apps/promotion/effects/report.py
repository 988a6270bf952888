"""The effect of one promotion, as shown by the pages and the API.

Before and after are not an experiment: what else changed in those days is listed next to the rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from django.db.models import Count, Max
from django.utils import timezone

from apps.core.intervals import LEVEL, student
from apps.core.models import AuditEvent
from apps.evals.costs import total_cost
from apps.evals.models import EvalRun
from apps.evals.paired import corrected
from apps.failures.models import Failure, FailureCluster
from apps.promotion.effects.marks import Share, Shift, shift
from apps.promotion.effects.windows import USUAL, Counted, count, windows
from apps.promotion.models import Promotion
from apps.registry.models import ModelVersion
from apps.training.lineage import COUNTED, datasets_behind, ids_of, jobs_behind
from apps.training.models import PromptSearch

MODES, CLUSTERS = 30, 30
FEWEST_DAYS = 2  # whole days with runs from which a week is extrapolated
CHANGES = {
    "channel": "Moves and settings of channels",
    "failure_mode": "Failure modes",
    "rubric": "The judge’s rubric",
    "reclassification": "Past failures reclassified",
    "failures": "Failures classified or decided in bulk",
    "environment": "Environments: prompts, tools, sampling",
    "verifier": "Verifiers",
    "modelversion": "Model and prompt versions",
    "model_version": "Model and prompt versions",
    "server": "Servers",
    "redaction": "Redaction of trajectories",
    "retention": "Retention of trajectories",
}
"""Of the audit log, by the first word of an action: what may change failure rates without the
promotion.
"""


@dataclass(frozen=True)
class Line:
    """A failure mode (`slug`) or a cluster (`slug`: its id) before and after. `trained`: the
    version learned from its failures.
    """

    name: str
    slug: str
    shift: Shift
    trained: bool = False


@dataclass(frozen=True)
class Other:
    """Something else that changed within the two windows: how often, and when last."""

    title: str
    n: int
    last: datetime


@dataclass(frozen=True)
class Saving:
    """The value of a week at the traffic after the promotion. The interval is that of the failure
    rate's difference and of the mean daily traffic together."""

    failures: float
    low: float
    high: float
    cost_usd: float | None


@dataclass(frozen=True)
class Effect:
    move: Promotion
    days: int
    before: Counted
    after: Counted
    total: Shift
    modes: list[Line]
    clusters: list[Line]
    others: list[Other]

    @property
    def named(self) -> bool:
        """Whether only runs that name one of the two versions are counted."""
        return bool(self.after.window.version)

    @property
    def differences(self) -> int:
        return len(self.modes) + len(self.clusters)

    @property
    def times(self) -> list[tuple[datetime, datetime]]:
        """From and until of both sides. Windows are whole hours; where versions tell runs apart,
        they share the hour of the move.
        """
        before, after, at, now = self.before.window, self.after.window, self.move.at, timezone.now()
        if not self.named:
            return [
                (before.begin, before.end),
                (after.begin, min(after.end, max(now, after.begin))),
            ]
        return [
            (before.begin, min(before.end, at)),
            (max(after.begin, at), min(after.end, max(now, at))),
        ]

    @property
    def latency_ratio(self) -> float | None:
        """How many times the mean latency before it is after."""
        before, after = self.before.latency_ms, self.after.latency_ms
        return after / before if before and after else None

    @property
    def saving(self) -> Saving | None:
        """None until two whole days had runs: a burst says nothing about a week."""
        daily, total = self.after.daily, self.total
        if (
            total.difference is None
            or total.low is None
            or total.high is None
            or sum(runs > 0 for runs in daily) < FEWEST_DAYS
        ):
            return None
        mean = fmean(daily)
        half = student(len(daily) - 1) * stdev(daily) / sqrt(len(daily))
        weekly, least, most = 7 * mean, 7 * max(0.0, mean - half), 7 * (mean + half)
        corners = [-rate * runs for rate in (total.low, total.high) for runs in (least, most)]
        sides = (self.before, self.after)
        each = [
            one.cost_usd / one.runs if one.cost_usd and one.runs and not one.unpriced else None
            for one in sides
        ]
        cost = None if None in each else (each[0] - each[1]) * weekly  # type: ignore[operator]
        return Saving(-total.difference * weekly, min(corners), max(corners), cost)


def effect_of(move: Promotion, days: int = USUAL) -> Effect:
    project = move.channel.project
    before, after = (count(project.pk, window) for window in windows(move, days))
    trained = _trained_on(move.to_version)
    names = {mode.pk: mode for mode in project.failure_modes.all()}
    found = before.clusters.keys() | after.clusters.keys() | trained
    clusters = {one.pk: one for one in FailureCluster.objects.filter(project=project, pk__in=found)}
    shown = sorted(
        clusters,
        key=lambda pk: (
            pk not in trained,
            -before.clusters.get(pk, 0) - after.clusters.get(pk, 0),
            str(pk),
        ),
    )[:CLUSTERS]
    modes = sorted(
        before.modes.keys() | after.modes.keys(),
        key=lambda pk: -before.modes.get(pk, 0) - after.modes.get(pk, 0),
    )[:MODES]
    level = corrected(len(modes) + len(shown))

    def moved(of: Any, key: Any, each: float, reopened: bool = False) -> Shift:
        sides = (Share(of(one).get(key, 0), one.runs) for one in (before, after))
        return shift(*sides, each, reopened=reopened)

    return Effect(
        move,
        days,
        before,
        after,
        shift(Share(before.failed, before.runs), Share(after.failed, after.runs), LEVEL),
        [
            Line(names[pk].name, names[pk].slug, moved(lambda one: one.modes, pk, level))
            for pk in modes
            if pk in names
        ],
        [
            Line(
                clusters[pk].name,
                str(pk),
                moved(lambda one: one.clusters, pk, level, _came_back(clusters[pk])),
                pk in trained,
            )
            for pk in shown
        ],
        list(_others(move, before.window.begin, after.window.end)),
    )


def _came_back(cluster: FailureCluster) -> bool:
    return cluster.state == FailureCluster.State.REOPENED


def _trained_on(version: ModelVersion) -> set[Any]:
    """The clusters of the failed runs that the version and its ancestors learned from."""
    runs = ids_of(datasets_behind(version), COUNTED)
    found = Failure.objects.filter(trajectory__in=runs, cluster__isnull=False).order_by()
    return set(found.values_list("cluster", flat=True).distinct())


def _others(move: Promotion, begin: datetime, end: datetime) -> Iterable[Other]:
    rows = AuditEvent.objects.filter(
        project=move.channel.project_id, at__gte=begin, at__lt=end
    ).order_by()
    found: dict[str, tuple[int, datetime]] = {}
    for action, n, last in rows.values_list("action").annotate(n=Count("*"), last=Max("at")):
        if title := CHANGES.get(action.partition(".")[0]):
            known = found.get(title, (0, last))
            found[title] = known[0] + n, max(known[1], last)
    own = Promotion.objects.filter(
        channel__project=move.channel.project_id, at__gte=begin, at__lt=end
    ).exclude(pk=move.pk)
    for other in own.select_related("channel", "to_version").order_by("-at")[:5]:
        yield Other(
            f"{other.get_kind_display()} in {other.channel}: {other.to_version}", 1, other.at
        )
    yield from (
        Other(title, *known)
        for title, known in sorted(found.items(), key=lambda item: item[1][1], reverse=True)
    )


# The cost of making it


@dataclass(frozen=True)
class Cost:
    """A step of making a version: its time on a worker, and USD if prices were recorded."""

    what: str
    seconds: float | None
    usd: float | None
    job: Any = None


def costs_of(version: ModelVersion) -> list[Cost]:
    """The job that made it, and its evaluations combined."""
    found = []
    job = next((job for node, job in jobs_behind(version) if node.pk == version.pk), None)
    if job:
        usd = job.usd if isinstance(job, PromptSearch) else None
        found.append(
            Cost(
                "Prompt search" if isinstance(job, PromptSearch) else "Training",
                job.seconds,
                usd,
                job,
            )
        )
    runs: Sequence[EvalRun] = list(version.eval_runs.filter(started_at__isnull=False))
    if runs:
        prices = [cost for run in runs if (cost := total_cost(run)) is not None]
        seconds = sum(run.seconds or 0 for run in runs)
        found.append(
            Cost(
                f"{len(runs):,} evaluation{'s' * (len(runs) != 1)}",
                seconds,
                sum(prices) if len(prices) == len(runs) else None,
            )
        )
    return found


def as_json(found: Effect) -> dict[str, Any]:
    saving = found.saving
    return {
        "promotion": found.move.pk,
        "kind": found.move.kind,
        "channel": found.move.channel.name,
        "at": found.move.at,
        "from_version": (
            found.move.from_name or (found.move.from_version and str(found.move.from_version))
        ),
        "to_version": found.move.to_name or str(found.move.to_version),
        "days": found.days,
        "runs_name_versions": found.named,
        "windows": {
            name: {
                "from": begin,
                "to": end,
                "runs": one.runs,
                "failed": one.failed,
                "latency_ms": one.latency_ms,
                "cost_usd": one.cost_usd,
            }
            for name, one, (begin, end) in zip(
                ("before", "after"), (found.before, found.after), found.times, strict=True
            )
        },
        "failures": found.total.as_dict(),
        "modes": [
            {"mode": line.slug, "name": line.name} | line.shift.as_dict() for line in found.modes
        ],
        "clusters": [
            {"cluster": line.slug, "name": line.name, "trained_on": line.trained}
            | line.shift.as_dict()
            for line in found.clusters
        ],
        "also_changed": [
            {"what": other.title, "times": other.n, "last": other.last} for other in found.others
        ],
        "costs": [
            {"what": cost.what, "seconds": cost.seconds, "usd": cost.usd}
            for cost in costs_of(found.move.to_version)
        ],
        "saves_per_week": (
            saving
            and {
                "failures": saving.failures,
                "low": saving.low,
                "high": saving.high,
                "cost_usd": saving.cost_usd,
            }
        ),
    }
