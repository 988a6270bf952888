"""Runs one claimed job: follows its child process or takes its steps, stores the results, ends the
job.

Every write here requires that this attempt still owns the job, so a runner that the reaper gave up
on cannot disturb its successor. An error ends the job immediately, with its cause; only an
unreachable database and a full disk are waited for.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Generator
from contextlib import closing
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from apps.core import child as children
from apps.core import job_files, jobs, placing
from apps.core.child import Child
from apps.core.heartbeat import Heartbeat
from apps.core.job_files import Keeper, job_folder
from apps.core.jobs import OwnershipLost, owned
from apps.core.kinds import ChildProcess, Incomplete, InProcess, Progress, kind_of
from apps.core.models import Job, JobLog, JobState
from apps.core.patience import Patience, patiently
from flywheel import logs, processes
from flywheel.outages import is_transient
from workers.lib.errors import is_disk_full
from workers.lib.memory import kernel_kills
from workers.lib.specs.job import Job as Spec

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 1.0  # if nothing arrived: then a cancel is noticed
FLUSH_EVENTS = 500
FULL_DISK = timedelta(minutes=1)  # after which a job is tried again; with each attempt longer
KILLED = (
    -signal.SIGKILL,
    128 + signal.SIGKILL,
)  # also if a shell or a container runtime reports it
KILLED_BY_KERNEL = (
    "The memory of the machine or of its container ran out, and the kernel ended the process."
)


def run(job: Job) -> None:
    """Claims the job and sees it to its end. Returns at once if another worker has it, or this
    machine lacks what it needs: then it is sent to those that have it.
    """
    if placing.is_for_others(job, kind_of(job).queue):
        jobs.enqueue(job)
        return
    if not job.claim(worker=processes.worker_id()):
        return
    kind = kind_of(job)
    with Heartbeat(job), logs.about(job=str(job.pk), project=job.project.slug):
        try:
            if isinstance(kind, InProcess):
                take_steps(job, kind)
            else:
                run_child(job, kind)
        except OwnershipLost:
            log.warning("Job %s was ended or taken over by another process", job.pk)
        except Exception as error:  # the job's boundary
            if is_transient(error):
                # the database stayed away for too long: the reaper queues the job again when it is
                # back
                raise
            log.exception("Job %s failed", job.pk)
            if is_disk_full(error):
                patiently(lambda: wait_for_space(job))
                return
            reason = sentence(error)
            patiently(lambda: jobs.end(job, JobState.FAILED, error=reason))


def wait_for_space(job: Job) -> None:
    """Space comes back as a database does, but later: the next attempt begins in some minutes."""
    jobs.retry_or_fail(job, "The disk is full: free some space.", due_in=FULL_DISK * job.attempt)


def sentence(error: Exception) -> str:
    """The page's text for an unexpected error, or the message of an expected one."""
    if isinstance(error, DatabaseError):
        return f"The database refused what was to be stored: {str(error).splitlines()[0]}"
    if isinstance(
        error, ArithmeticError | AssertionError | AttributeError | LookupError | TypeError
    ):
        return f"{type(error).__name__}: {error}"
    return str(error) or type(error).__name__


# In steps


def take_steps(job: Job, kind: InProcess) -> None:
    """From the stored cursor to the end; again from there if the database was unreachable in
    between.
    """
    patience = Patience()
    while True:
        try:
            row = owned(job)
            more, returned = True, None
            with closing(kind.steps(row)) as steps:
                while more:
                    more, returned = step(row, steps, returned)
                    patience.reset()
            return
        except Exception as error:
            patience.wait(error)


def step(job: Job, steps: Generator[Progress, Any, dict], returned: Any) -> tuple[bool, Any]:
    """One step and what is known of it, in one transaction, then what it does outside of it.
    Whether it was not the last one, and what that returned.
    """
    with transaction.atomic():
        try:
            progress = steps.send(returned)
        except StopIteration as end:
            finish(job, JobState.SUCCEEDED, result=end.value or {})
            return False, None
        changes = {"done": progress.done, "label": progress.label[:200], "cursor": progress.cursor}
        if progress.total is not None:
            changes["total"] = progress.total
        if not type(job).objects.held_by(job).update(heartbeat_at=Now(), **changes):
            raise OwnershipLost
    if owned(job).cancel_requested_at is None:
        return True, progress.outside() if progress.outside else None
    finish(job, JobState.CANCELLED)
    return False, None


def finish(job: Job, state: JobState, *, error: str = "", result: dict | None = None) -> None:
    """Raises OwnershipLost, also if an earlier try did it and its answer was lost on the way."""
    if not jobs.end(job, state, error=error, result=result):
        raise OwnershipLost


# In a child process


def job_fields(job: Job) -> dict[str, Any]:
    """The fields of every job's spec (`workers.lib.specs.job`)."""
    return {
        "job_id": str(job.pk),
        "attempt": job.attempt,
        "out_dir": str(job_folder(job) / "out"),
        "seed": job.spec.get("seed", 0),
    }


def command(kind: ChildProcess, spec: Spec) -> list[str]:
    """Several processes are started by a parent that imports nothing of the program."""
    program = f"workers.{spec.program()}"
    parent = ["workers.lib.processes", program, str(spec.processes)]
    return [kind.python(), "-m", *(parent if spec.processes > 1 else [program])]


def run_child(job: Job, kind: ChildProcess) -> None:
    folder = job_folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    spec = patiently(lambda: kind.child_spec(job))
    spec_path, stderr_path = (
        job_files.spec_path(job, job.attempt),
        folder / f"stderr-{job.attempt}.log",
    )
    kills = kernel_kills()
    child = children.start(command(kind, spec), spec_path, spec, stderr_path)
    try:
        with kind.beside(job), Keeper(job):
            follow(job, child, kind)
    except BaseException:
        child.signal(signal.SIGKILL)
        child.close()
        raise
    status = child.close()
    if status == 0 and child.result is not None:
        result = child.result
        patiently(lambda: complete(job, result))
    else:
        kernel = (
            KILLED_BY_KERNEL if status in KILLED and (kernel_kills() or 0) > (kills or 0) else ""
        )
        patiently(lambda: end_badly(job, child, status, spec.program(), kernel))


def follow(job: Job, child: Child, kind: ChildProcess) -> None:
    """Stores events in batches until the child closes its pipe; passes on a cancel."""
    pending: list[dict] = []
    started = flushed_at = time.monotonic()
    ended = False
    while not ended:
        every = kind.flush_every_s if pending else FLUSH_EVERY_S
        events, ended = child.read(timeout=max(0.0, flushed_at + every - time.monotonic()))
        pending += events
        every, now = kind.flush_every_s if pending else FLUSH_EVERY_S, time.monotonic()
        if ended or len(pending) >= FLUSH_EVENTS or now - flushed_at >= every:
            cancelled = patiently(lambda batch=pending: store(job, batch))
            if cancelled or (kind.time_limit_s and now - started > kind.time_limit_s):
                child.ask_to_stop()
            pending, flushed_at = [], now


def store(job: Job, events: list[dict]) -> bool:
    """One batch in one transaction, each event once. True if cancelling was requested."""
    with transaction.atomic():
        row = (
            type(job)
            .objects.held_by(job)
            .select_for_update()
            .only("last_seq", "cancel_requested_at")
            .first()
        )
        if row is None:
            raise OwnershipLost
        fresh = [event for event in events if event["seq"] > row.last_seq]
        changes: dict = {"heartbeat_at": Now()}
        if fresh:
            changes["last_seq"] = fresh[-1]["seq"]
            changes |= latest_progress(fresh)
            store_logs(job, fresh)
            kind_of(job).store_events(job, fresh)
        type(job).objects.held_by(job).update(**changes)
    job.cancel_requested_at = row.cancel_requested_at
    return row.cancel_requested_at is not None


def latest_progress(events: list[dict]) -> dict:
    for event in reversed(events):
        if event["type"] == "progress":
            return {
                "done": int(event["done"]),
                "total": int(event["total"]),
                "label": str(event["label"])[:200],
            }
    return {}


def store_logs(job: Job, events: list[dict]) -> None:
    JobLog.objects.bulk_create(
        [
            JobLog(
                job=job.pk,
                attempt=job.attempt,
                seq=event["seq"],
                level=str(event.get("level", "info"))[:10],
                message=str(event.get("message", "")),
                at=event.get("at") or timezone.now(),
            )
            for event in events
            if event["type"] in ("log", "error")
        ],
        ignore_conflicts=True,
    )


def complete(job: Job, result: dict) -> None:
    """Stores the result and ends the job, in one transaction. Done again after a lost answer, it
    finds the job ended.
    """
    with transaction.atomic():
        owned(job)
        try:
            kept = kind_of(job).complete(job, result)
            finish(
                job,
                JobState.SUCCEEDED,
                result=kept | ({"peak": result["peak"]} if result.get("peak") else {}),
            )
        except Incomplete as end:
            finish(job, JobState.FAILED, error=str(end), result=end.result)


def in_words(seconds: float) -> str:
    return f"{seconds / 3600:.0f} hours" if seconds >= 3600 else f"{seconds / 60:.0f} minutes"


def end_badly(job: Job, child: Child, status: int, program: str, kernel: str = "") -> None:
    """Determines how a job ended whose child left no result, from the exit status and the last
    event. `kernel`: why the kernel killed it, if known."""
    kind = kind_of(job)
    said = str((child.error or {}).get("message", ""))
    cause = (child.error or {}).get("cause")
    short = kernel or (said if cause == "memory" else "")
    if owned(job).cancel_requested_at:  # also if it was requested since the last event
        finish(job, JobState.CANCELLED)
    elif short and tried_smaller(job, kind, short):
        return
    elif cause == "disk":
        wait_for_space(job)
    elif child.error is not None:
        finish(
            job,
            JobState.FAILED,
            error=f"{said} {kind.memory_advice(job) if short else ''}".strip() or "The job failed.",
        )
    elif kind.time_limit_s and child.terminated_at is not None:
        finish(job, JobState.FAILED, error=f"It was stopped after {in_words(kind.time_limit_s)}.")
    elif status < 0 or status in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
        name = signal.Signals(-status if status < 0 else status - 128).name
        advice = kind.memory_advice(job) if status in KILLED else ""
        perhaps = (
            "" if short or not advice else "Linux does that when the memory runs out; if it did:"
        )
        jobs.retry_or_fail(
            job,
            " ".join(
                filter(
                    None, (f"The {program} process was killed ({name}).", short, perhaps, advice)
                )
            ),
        )
    else:
        reason = f"The {program} process ended with status {status}. {child.last_line_of_stderr()}"
        finish(job, JobState.FAILED, error=reason.strip())


def tried_smaller(job: Job, kind: ChildProcess, reason: str) -> bool:
    """Queues the job again if it can continue with less memory. The kind's changes are stored with
    that, or not at all.
    """
    if job.attempt >= job.max_attempts:
        return False
    with transaction.atomic():
        changed = kind.reduce(job)
        return bool(changed) and jobs.retry_or_fail(job, f"{reason} {changed}")
