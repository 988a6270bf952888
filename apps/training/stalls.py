"""Detects training runs that have stopped reporting. A process that hangs cannot raise the alarm
itself, and its worker's heartbeat goes on, so a periodic task checks from outside.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from django.db.models import Max, QuerySet
from django.utils import timezone

from apps.core.models import JobLog, JobState
from apps.training import run_alarms
from apps.training.judged_outputs import OF_JUDGE, OF_REVIEW
from apps.training.models import Metric, TrainingRun

# minimum length of a step, since a validation or a checkpoint may come between two short ones
SHORTEST_S = 60.0
UNKNOWN_S = (
    300.0  # used until enough steps are finished: the run loads a model, or is in its first step
)
ENOUGH = 3  # finished steps needed


def own_metrics(run: TrainingRun) -> QuerySet[Metric]:
    """The run's own metrics, without those computed from verdicts on its outputs."""
    return run.metrics.exclude(name__in=[*OF_REVIEW, *OF_JUDGE])


def last_sign(run: TrainingRun) -> datetime:
    """When the run last reported anything, or was started."""
    times = [
        run.started_at,
        own_metrics(run).aggregate(at=Max("at"))["at"],
        run.rollouts.aggregate(at=Max("created_at"))["at"],
        run.checkpoints.aggregate(at=Max("at"))["at"],
        JobLog.objects.filter(job=run.pk).aggregate(at=Max("at"))["at"],
    ]
    return max(at for at in times if at is not None)


def usual_step(run: TrainingRun, over: int) -> float:
    """The median duration in seconds of the last `over` steps of this attempt."""
    rows = (
        own_metrics(run)
        .filter(at__gte=run.started_at)
        .order_by()
        .values("step")
        .annotate(at=Max("at"))
        .order_by("-step")
    )
    times = [row["at"] for row in rows[: over + 1]]
    if len(times) <= ENOUGH:
        return UNKNOWN_S
    return max(
        SHORTEST_S, median((later - earlier).total_seconds() for later, earlier in pairwise(times))
    )


def watch(now: datetime | None = None) -> int:
    """Check all running runs; return how many have been silent for too long."""
    running = TrainingRun.objects.filter(state=JobState.RUNNING, cancel_requested_at=None)
    return sum(
        judge(run, now or timezone.now()) for run in running.select_related("project", "created_by")
    )


def judge(run: TrainingRun, now: datetime) -> bool:
    quiet, usual = (
        now - last_sign(run),
        timedelta(seconds=usual_step(run, run_alarms.limits_of(run, "stall").over)),
    )
    note = f"No output for {minutes(quiet)}; a step usually takes {minutes(usual)}."
    return run_alarms.judge_outside(run, "stall", run.done, quiet / usual, note) is not None


def minutes(span: timedelta) -> str:
    seconds = span.total_seconds()
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} minutes"
        if seconds < 7200
        else f"{seconds / 3600:.1f} hours"
    )
