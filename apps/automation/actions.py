"""Turning the wheel by the clock, up to the point where a person decides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.automation.models import Schedule, Step
from apps.core.actions import audit
from apps.core.models import Project
from apps.failures import classify_job


@transaction.atomic
def set_schedule(*, project: Project, step: Step, every_minutes: int, enabled: bool, by: Any) -> Schedule:
    schedule, _ = Schedule.objects.update_or_create(
        project=project,
        step=step,
        defaults={"every_minutes": every_minutes, "enabled": enabled, "next_run_at": timezone.now(), "created_by": by},
    )
    audit("schedule.set", project=project, by=by, target=schedule, every_minutes=every_minutes, enabled=enabled)
    return schedule


def run_due() -> int:
    """Runs the schedules whose time has come, each claimed by one caller. Says how many."""
    return sum(run_if_due(schedule) for schedule in Schedule.objects.due().select_related("project"))


def run_if_due(schedule: Schedule) -> bool:
    """False where another process got there first."""
    now = timezone.now()
    claimed = Schedule.objects.filter(pk=schedule.pk, next_run_at=schedule.next_run_at, enabled=True).update(
        next_run_at=now + timedelta(minutes=schedule.every_minutes), last_run_at=now
    )
    if claimed:
        run(schedule)
    return bool(claimed)


def run(schedule: Schedule, *, by: Any = None) -> str:
    """Starts the step now, as a job. Whether it started is kept on the schedule; how it went is the job's to say."""
    try:
        job = classify_job.start(project=schedule.project, by=by)
        result = f"started, {job.total:,} new or changed trajectories"
    except Exception as error:
        Schedule.objects.filter(pk=schedule.pk).update(last_result=f"failed: {error}"[:1000])
        raise
    Schedule.objects.filter(pk=schedule.pk).update(last_result=result, last_run_at=timezone.now())
    return result
