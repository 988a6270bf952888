"""How a job is submitted, cancelled, ended, begun again, and saved from a dead worker. `runner`
runs it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from django.db import models, transaction
from django.db.models.functions import Now
from django.utils import timezone

from apps.core import outbox, placing
from apps.core.actions import audit
from apps.core.bus import Event, publish
from apps.core.errors import Rejected
from apps.core.kinds import job_models, kind_of
from apps.core.models import LAST_RESEND, Job, JobLog, JobState, Project, ProjectDeletion
from apps.core.nouns import noun

J = TypeVar("J", bound=Job)
TASK = "core.run_job"
# A message that waits longer than this is dropped: another one has been sent long since, and so a
# job that waits for days has two or three messages in the queue, not thousands.
EXPIRES_S = 2 * LAST_RESEND.total_seconds()
RESENT_AT_ONCE = 100


class JobEnded(Event):
    """`by`: who cancelled it; None if it ended by itself."""

    job: Job
    by: Any


class OwnershipLost(Exception):
    """Another attempt owns the job now (or it has ended): stop and write nothing more."""


def owned(job: Job) -> Job:
    """The current row. Raises OwnershipLost."""
    row = type(job).objects.held_by(job).first()
    if row is None:
        raise OwnershipLost
    return row


def submit(job: J, *, by: Any, due_in: timedelta | None = None) -> J:
    """Saves a new job as QUEUED and, once that is committed, sends its id to its queue.

    `due_in`: the reaper sends it then, unless somebody calls `enqueue` before. Raises Rejected in a
    project that is not active.
    """
    with transaction.atomic():
        if (
            not isinstance(job, ProjectDeletion)
            and not Project.objects.running().filter(pk=job.project_id).exists()
        ):
            raise Rejected(f"{job.project} is archived or being deleted: nothing is started there.")
        job.created_by = by
        if due_in is not None:
            job.resend_at = Now() + due_in
        job.save(force_insert=True)
        audit(
            f"{job._meta.model_name}.submitted",
            project=job.project,
            by=by,
            target=job,
            name=job.name,
            **job.audit_detail,
        )
        if due_in is None:
            transaction.on_commit(lambda: enqueue(job))
    return job


def enqueue(job: Job) -> None:
    """Sends the id. A message that is lost is sent again by the reaper, after longer and longer
    waits.
    """
    if job.note_send():
        label, queue = job._meta.label, kind_of(job).queue
        for each in placing.queues_for(job, queue):
            outbox.post(TASK, label, str(job.pk), queue=each, expires_s=EXPIRES_S)


def restart(
    job: Job,
    *,
    among: models.QuerySet[Any],
    by: Any,
    action: str,
    detail: dict | None = None,
    **changes: Any,
) -> bool:
    """Queues an ended job again, if it is still one of `among`; `action` and `detail` are its line
    in the audit log.
    """
    with transaction.atomic():
        restarted = job.restart(among, **changes)
        if restarted:
            job.refresh_from_db()
            audit(
                f"{job._meta.model_name}.{action}",
                project=job.project,
                by=by,
                target=job,
                name=job.name,
                **(detail or {}),
            )
            transaction.on_commit(lambda: enqueue(job))
    return restarted


@transaction.atomic
def cancel(job: Job, *, by: Any) -> bool:
    """False if it has finished."""
    asked = job.request_cancel()
    if asked:
        audit(
            f"{job._meta.model_name}.cancel_requested",
            project=job.project,
            by=by,
            target=job,
            name=job.name,
        )
        job.refresh_from_db()
        if not job.is_active:
            kind_of(job).ended(job)
            publish(JobEnded(job, by))
    return asked


def stop(job: Job, *, by: Any) -> None:
    """Cancels it. Raises Rejected if it has finished."""
    if not cancel(job, by=by):
        raise Rejected(f"This {noun(type(job))} has already finished.")


@transaction.atomic
def end(job: Job, state: JobState, *, error: str = "", result: dict | None = None) -> bool:
    """Ends the current attempt, and with it the job. False if it is no longer this attempt's."""
    ended = job.finish(state, error=error, result=result)
    if ended:
        job.refresh_from_db()
        kind_of(job).ended(job)
        publish(JobEnded(job, by=None))
    return ended


def retry_or_fail(
    job: Job,
    reason: str,
    among: models.QuerySet[Any] | None = None,
    *,
    due_in: timedelta = timedelta(),
) -> bool:
    """After a death that is not the job's own error: queues it again while attempts are left,
    otherwise fails it. `due_in`: the reaper sends it then.

    True if it was queued again. False also if another process decided first, or it is no longer in
    `among`.
    """
    among = type(job).objects.all() if among is None else among
    with transaction.atomic():
        if job.cancel_requested_at or job.attempt >= job.max_attempts:
            if among.filter(pk=job.pk).select_for_update().exists():
                _give_up(job, reason)
            return False
        requeued = job.requeue(among, due_in)
        if requeued:
            when = f" in {due_in.total_seconds() / 60:g} min" if due_in else ""
            note(
                job,
                f"{reason} Attempt {job.attempt} of {job.max_attempts} ended; queued again{when}.",
                "warning",
            )
            job.sends = 0
            if not due_in:
                transaction.on_commit(lambda: enqueue(job))
    return requeued


def _give_up(job: Job, reason: str) -> None:
    if job.cancel_requested_at:
        end(job, JobState.CANCELLED)
    else:
        tried = f"It was tried {job.attempt} times." if job.attempt > 1 else ""
        end(
            job,
            JobState.FAILED,
            error=" ".join(part for part in (reason, tried, kind_of(job).if_lost) if part),
        )


def note(job: Job, message: str, level: str = "info") -> None:
    """A log line of the runner itself, numbered far above the child's own lines."""
    seq = 10**15 + int(timezone.now().timestamp() * 1000)
    JobLog.objects.get_or_create(
        job=job.pk, attempt=job.attempt, seq=seq, defaults={"message": message, "level": level}
    )


def reap() -> dict[str, int]:
    """Requeues or fails jobs whose worker died, and sends queued jobs again whose message was
    lost.
    """
    requeued = failed = resent = 0
    for model in job_models():
        for job in model.objects.stale():
            reason = f"The worker {job.worker or '(unknown)'} stopped answering."
            if retry_or_fail(job, reason, model.objects.stale()):
                requeued += 1
            else:
                failed += 1
        for job in model.objects.unsent().order_by("resend_at")[:RESENT_AT_ONCE]:
            enqueue(job)
            resent += 1
    return {"requeued": requeued, "failed": failed, "resent": resent}
