"""Whether a run still says something. A process that hangs cannot raise the alarm itself, so it is asked for from outside: the
worker's heart beats on while its child hangs."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from apps.core import jobs
from apps.core.models import JobLog, JobState
from apps.training import run_alarms
from apps.training.models import TrainingRun
from workers.lib.alarms import LEVELS, RULES, AlarmSettings, Limits, alarm_at, merged
from workers.lib.typed import convert

SHORTEST_S = 60.0  # what a step counts as at least: a validation or a checkpoint lies between two short ones
UNKNOWN_S = 300.0  # of a run that has not finished enough steps: it loads a model, or is in its first step
ENOUGH = 3  # steps


def limits_of(run: TrainingRun) -> Limits:
    settings = convert(run.spec["config"].get("alarms") or {}, AlarmSettings)
    return merged(RULES["stall"], settings.stall)


def last_sign(run: TrainingRun) -> datetime:
    """When the run said something for the last time, or was started."""
    times = [
        run.started_at,
        run.metrics.aggregate(at=Max("at"))["at"],
        run.rollouts.aggregate(at=Max("created_at"))["at"],
        run.checkpoints.aggregate(at=Max("at"))["at"],
        JobLog.objects.filter(job=run.pk).aggregate(at=Max("at"))["at"],
    ]
    return max(at for at in times if at is not None)


def usual_step(run: TrainingRun, over: int) -> float:
    """Seconds: the median of the last `over` steps of this attempt."""
    rows = run.metrics.filter(at__gte=run.started_at).order_by().values("step").annotate(at=Max("at")).order_by("-step")
    times = [row["at"] for row in rows[: over + 1]]
    if len(times) <= ENOUGH:
        return UNKNOWN_S
    return max(SHORTEST_S, median((later - earlier).total_seconds() for later, earlier in pairwise(times)))


def watch(now: datetime | None = None) -> int:
    """Judges all runs that train; returns how many are silent for too long."""
    running = TrainingRun.objects.filter(state=JobState.RUNNING, cancel_requested_at=None)
    return sum(judge(run, now or timezone.now()) for run in running.select_related("project", "created_by"))


def judge(run: TrainingRun, now: datetime) -> bool:
    limits = limits_of(run)
    if limits.action == "ignore":
        return False
    quiet, usual = now - last_sign(run), usual_step(run, limits.over)
    open_alarm = run.alarms.filter(name="stall", attempt=run.attempt, cleared_step=None).order_by("-pk").first()
    before = open_alarm.action if open_alarm else "ignore"
    alarm = alarm_at(limits, run.done, quiet.total_seconds() / usual)
    if alarm is None or LEVELS[alarm.action] <= LEVELS[before]:
        if alarm is None and open_alarm:
            run.alarms.filter(name="stall", cleared_step=None).update(cleared_step=run.done)
        return alarm is not None
    said = (
        f"{alarm.message} It has said nothing for {minutes(quiet)}; a step takes {minutes(timedelta(seconds=usual))}."
    )
    with transaction.atomic():
        if not TrainingRun.objects.held_by(run).filter(cancel_requested_at=None).select_for_update().exists():
            return False  # it has ended meanwhile
        run_alarms.store(run, [{"type": "alarm"} | alarm.as_event() | {"message": said}])
        if alarm.action == "stop":
            jobs.end(run, JobState.FAILED, error=f"Stopped at step {run.done}. {said} {alarm.todo}")
    return True


def minutes(span: timedelta) -> str:
    seconds = span.total_seconds()
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} minutes"
        if seconds < 7200
        else f"{seconds / 3600:.1f} hours"
    )
