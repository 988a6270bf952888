"""How a job is submitted, cancelled, and saved from a dead worker. `runner.py` is what runs it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, TypeVar

from django.apps import apps
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from apps.core.actions import audit
from apps.core.models import Job, JobLog, JobState

log = logging.getLogger(__name__)
J = TypeVar("J", bound=Job)
LOST_MESSAGE_AFTER = timedelta(seconds=20)


def concrete_jobs() -> list[type[Job]]:
    return [model for model in apps.get_models() if issubclass(model, Job)]


def submit(job: J, *, by: Any) -> J:
    """Saves a new job as QUEUED and, once that is committed, sends its id to its queue."""
    with transaction.atomic():
        job.created_by = by
        job.save(force_insert=True)
        audit(f"{job._meta.model_name}.submitted", project=job.project, by=by, target=job, name=job.name)
        transaction.on_commit(lambda: enqueue(job))
    return job


def enqueue(job: Job) -> None:
    """Sends the id. A broker that is away loses nothing: the reaper sends queued jobs again."""
    from apps.core.tasks import run_job

    try:
        run_job.apply_async(args=[job._meta.label, str(job.pk)], queue=job.QUEUE, retry=False)
    except (BrokerError, OSError) as error:
        log.warning("Job %s waits for the broker: %s", job.pk, error)


@transaction.atomic
def cancel(job: Job, *, by: Any) -> bool:
    asked = job.request_cancel()
    if asked:
        audit(f"{job._meta.model_name}.cancel_requested", project=job.project, by=by, target=job, name=job.name)
    return asked


def retry_or_fail(job: Job, reason: str) -> bool:
    """After a death that is not the job's own error: queue it again while attempts are left, else fail it.

    True if it was queued again. False too where another process decided first.
    """
    if job.cancel_requested_at:
        job.finish(JobState.CANCELLED)
        return False
    if job.attempt < job.max_attempts:
        with transaction.atomic():
            requeued = job.requeue()
            if requeued:
                note(job, f"{reason} Attempt {job.attempt} of {job.max_attempts} ended; queued again.", "warning")
                transaction.on_commit(lambda: enqueue(job))
        return requeued
    job.finish(JobState.FAILED, error=f"{reason} It was tried {job.attempt} times. The last checkpoint is kept.")
    return False


def note(job: Job, message: str, level: str = "info") -> None:
    """A log line of the runner itself, numbered far above the child's own lines."""
    seq = 10**15 + int(timezone.now().timestamp() * 1000)
    JobLog.objects.get_or_create(
        job=job.pk, attempt=job.attempt, seq=seq, defaults={"message": message, "level": level}
    )


def reap() -> dict[str, int]:
    """Requeues or fails jobs whose worker died, and sends queued jobs again whose message was lost."""
    requeued = failed = resent = 0
    for model in concrete_jobs():
        for job in model.objects.stale():
            if retry_or_fail(job, f"The worker {job.worker or '(unknown)'} stopped answering."):
                requeued += 1
            else:
                failed += 1
        waiting = model.objects.filter(
            state=JobState.QUEUED, created_at__lt=timezone.now() - LOST_MESSAGE_AFTER
        ).order_by("created_at")[:20]
        for job in waiting:
            enqueue(job)
            resent += 1
    return {"requeued": requeued, "failed": failed, "resent": resent}
