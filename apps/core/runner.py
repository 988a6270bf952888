"""Runs one claimed job: starts its child process, stores the events it writes, ends the job.

The child never touches the database (docs/jobs.md). Every write here is on condition that this attempt
still owns the job, so that a runner the reaper gave up on cannot disturb its successor.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, transaction
from django.utils import timezone

from apps.core import jobs
from apps.core.models import Job, JobLog, JobState
from workers.lib.clients import key_variables

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 1.0
FLUSH_EVENTS = 500
CANCEL_GRACE_S = 30.0
DATABASE_PATIENCE_S = 180.0
MAX_LINE = 8 * 1024 * 1024
PR_SET_PDEATHSIG = 1
# What the child may know of this process: nothing that opens the database, the broker or a session.
PASSED_ENV = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "HF_HOME",
)


class OwnershipLost(Exception):
    """Another attempt owns the job now (or it was ended): stop the child and write nothing more."""


@dataclass
class Ending:
    """What the child said last."""

    result: dict | None = None
    error: dict | None = None


@dataclass
class Child:
    process: subprocess.Popen
    events_fd: int
    stderr_path: Path
    ending: Ending = field(default_factory=Ending)
    tail: bytes = b""
    terminated_at: float | None = None

    def read(self, timeout: float) -> tuple[list[dict], bool]:
        """Events that arrived within `timeout` seconds, and whether the pipe is at its end."""
        ready, _, _ = select.select([self.events_fd], [], [], timeout)
        if not ready:
            return [], False
        chunk = os.read(self.events_fd, 1 << 20)
        *lines, self.tail = (self.tail + chunk).split(b"\n")
        if len(self.tail) > MAX_LINE:
            self.tail = b""
        return [event for event in map(parse_event, lines) if event], not chunk

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def ask_to_stop(self) -> None:
        """SIGTERM first, SIGKILL once the grace is over."""
        now = time.monotonic()
        if self.terminated_at is None:
            self.terminated_at = now
            self.signal(signal.SIGTERM)
        elif now - self.terminated_at > CANCEL_GRACE_S:
            self.signal(signal.SIGKILL)

    def close(self) -> int:
        """Makes sure that nothing of the child is left; returns its exit status."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.signal(signal.SIGKILL)
        os.close(self.events_fd)
        return self.process.returncode

    def last_words(self) -> str:
        """The last line on standard error, for an end that no event explains."""
        with contextlib.suppress(OSError):
            lines = self.stderr_path.read_text(errors="replace").strip().splitlines()
            return lines[-1][:500] if lines else ""
        return ""


def parse_event(line: bytes) -> dict | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("seq"), int) and "type" in event else None


def job_folder(job: Job) -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "jobs" / job._meta.model_name / str(job.pk)


def run(job: Job) -> None:
    """Claims the job and sees it to its end. Returns at once if another worker has it."""
    if not job.claim(worker=f"{socket.gethostname()}:{os.getpid()}"):
        return
    try:
        child = start_child(job)
    except Exception as error:  # the job's boundary: what the spec cannot say is the job's error
        log.exception("Job %s did not start", job.pk)
        job.finish(JobState.FAILED, error=sentence(error))
        return
    lost = False
    try:
        follow(job, child)
    except OwnershipLost:
        lost = True
        child.signal(signal.SIGKILL)
    except Exception:
        child.signal(signal.SIGKILL)
        child.close()
        raise
    status = child.close()
    if not lost:
        end(job, child, status)


def command(job: Job, spec_path: Path) -> list[str]:
    return [sys.executable, "-m", f"workers.{job.WORKER}", str(spec_path)]


def start_child(job: Job) -> Child:
    folder = job_folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    spec = job.child_spec() | {"job_id": str(job.pk), "attempt": job.attempt, "out_dir": str(folder / "out")}
    spec_path = folder / f"spec-{job.attempt}.json"
    spec_path.write_text(json.dumps(spec, indent=1))
    stderr_path = folder / f"stderr-{job.attempt}.log"
    read_fd, write_fd = os.pipe()
    env = {name: os.environ[name] for name in (*PASSED_ENV, *key_variables(spec)) if name in os.environ}
    env |= {
        "FLYWHEEL_EVENTS_FD": str(write_fd),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(settings.BASE_DIR),
    }
    try:
        with stderr_path.open("ab") as stderr:
            process = subprocess.Popen(
                command(job, spec_path),
                cwd=settings.BASE_DIR,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[write_fd],
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    return Child(process, read_fd, stderr_path)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def follow(job: Job, child: Child) -> None:
    """Stores events in batches until the child closes its pipe; beats the heartbeat; passes on a cancel."""
    pending: list[dict] = []
    flushed_at, ended = time.monotonic(), False
    while not ended:
        events, ended = child.read(timeout=FLUSH_EVERY_S)
        pending += events
        if ended or len(pending) >= FLUSH_EVENTS or time.monotonic() - flushed_at >= FLUSH_EVERY_S:
            if patiently(lambda batch=pending: store(job, batch, child.ending)):
                child.ask_to_stop()
            pending, flushed_at = [], time.monotonic()


def patiently(write: Callable[[], bool]) -> bool:
    """Repeats a write while the database is away, for a bounded time: the child goes on meanwhile."""
    deadline = time.monotonic() + DATABASE_PATIENCE_S
    while True:
        try:
            return write()
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            log.warning("The database is away; trying again")
            time.sleep(1)
            close_old_connections()


def store(job: Job, events: list[dict], ending: Ending) -> bool:
    """One batch in one transaction, each event once. True if a cancel was asked for."""
    with transaction.atomic():
        row = type(job).objects.held_by(job).select_for_update().only("last_seq", "cancel_requested_at").first()
        if row is None:
            raise OwnershipLost
        fresh = [event for event in events if event["seq"] > row.last_seq]
        changes: dict = {"heartbeat_at": timezone.now()}
        if fresh:
            changes["last_seq"] = fresh[-1]["seq"]
            changes |= latest_progress(fresh)
            store_logs(job, fresh)
            job.absorb(fresh)
        type(job).objects.held_by(job).update(**changes)
    for event in fresh:
        if event["type"] == "result":
            ending.result = event
        elif event["type"] == "error":
            ending.error = event
    job.cancel_requested_at = row.cancel_requested_at
    return row.cancel_requested_at is not None


def latest_progress(events: list[dict]) -> dict:
    for event in reversed(events):
        if event["type"] == "progress":
            return {"done": int(event["done"]), "total": int(event["total"]), "label": str(event["label"])[:200]}
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


def end(job: Job, child: Child, status: int) -> None:
    """Decides how the job ended from the exit status and the last event."""
    if status == 0 and child.ending.result is not None:
        complete(job, child.ending.result)
    elif job.cancel_requested_at:
        job.finish(JobState.CANCELLED)
    elif child.ending.error is not None:
        job.finish(JobState.FAILED, error=str(child.ending.error.get("message", "")) or "The job failed.")
    elif status < 0 or status == 128 + signal.SIGTERM:
        name = signal.Signals(-status).name if status < 0 else "SIGTERM"
        jobs.retry_or_fail(job, f"The {job.WORKER} process was killed ({name}).")
    else:
        words = child.last_words()
        job.finish(JobState.FAILED, error=f"The {job.WORKER} process ended with status {status}. {words}".strip())


def complete(job: Job, result: dict) -> None:
    try:
        with transaction.atomic():
            kept = job.complete(result)
            if not job.finish(JobState.SUCCEEDED, result=kept):
                raise OwnershipLost
    except OwnershipLost:
        log.warning("Job %s was ended by another process", job.pk)
    except DatabaseError:
        raise
    except Exception as error:
        log.exception("Job %s could not be completed", job.pk)
        job.finish(JobState.FAILED, error=sentence(error))


def sentence(error: Exception) -> str:
    return str(error) or type(error).__name__
