"""What can be wrong with what every installation needs: database, broker, workers, disk, jobs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import ProgrammingError, connection, models
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from psycopg.errors import UndefinedTable

from apps.core import jobs, schema
from apps.core.backups import schedule
from apps.core.http import uuid_of
from apps.core.kinds import job_models, kind_of
from apps.core.models import JobState, Worker
from apps.core.nouns import noun
from apps.core.watching.conditions import Button, Finding, Lane, Severity, Unknown, condition
from apps.core.watching.disks import disks
from flywheel import alive, embedded
from flywheel.postgres.full import why_full
from flywheel.postgres.watched import watch

FULL, NEARLY_FULL = 0.95, 0.85
FEW_CONNECTIONS = 0.85
USERS_SHOWN = 4
OURS = "flywheel"  # how the names of our connections begin
SKEW_S = 5.0
IDLE = "state = 'idle' AND state_change < now() - interval '1 minute'"
LOST_SHOWN = timedelta(hours=6)
SAID_AGAIN_S = 45.0  # after which workers and beat have been heard of again
WAITS_LONG = timedelta(minutes=15)


def _stopped(name: str) -> Callable[[Exception | None], str]:
    """Why an embedded service does not answer, where somebody stopped it."""

    def explains(_: Exception | None) -> str:
        pid = embedded.stopped().get(name)
        where = f"process {pid} on {socket.gethostname()}"
        return f"{name} ({where}) is stopped. “kill -CONT {pid}” lets it go on." if pid else ""

    return explains


@condition(
    "database",
    "The database does not answer",
    todo="Check that PostgreSQL runs and is not overloaded or frozen. Nothing that was acknowledged"
    " is lost; agents are asked to send again.",
    part="database",
    for_operators=True,
    explains=_stopped("PostgreSQL"),
)
def database() -> Iterator[Finding]:
    """Whatever a query raises is the finding."""
    watch.require_answers()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM core_project")
    except ProgrammingError as error:
        if not isinstance(error.__cause__, UndefinedTable):  # that is what `schema` says
            raise
    yield from ()


@condition(
    "schema",
    "The database has another schema",
    todo="What it says: it depends on which schema the database has (docs/upgrading.md).",
    part="schema",
)
def other_schema() -> Iterator[Finding]:
    """A process that runs already may go on with a newer one that only added something."""
    state = schema.schema_state()
    if not state.fits:
        yield Finding(state.sentence)


def _end_idle(about: str, by: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND pid <> pg_backend_pid() AND ({IDLE})"
        )
        (ended,) = cursor.fetchone()
    return f"Ended {ended} idle connections."


def _no_connection_left(error: Exception | None) -> str:
    said = why_full(error)
    return f"All connections that PostgreSQL allows are in use ({said})." if said else ""


@condition(
    "connections",
    "The database has few connections left",
    todo="Stop the program that holds most of them, if it is not Flywheel, and press the button:"
    " it ends connections that nobody uses. If Flywheel itself needs more, raise max_connections"
    " (FLYWHEEL_EMBEDDED_CONNECTIONS), put PgBouncer between, or stop some of the workers. New"
    " requests are refused once none is left.",
    severity=Severity.CRITICAL,
    button=Button("End idle connections", _end_idle),
    explains=_no_connection_left,
)
def few_connections() -> Iterator[Finding]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(nullif(application_name, ''), 'unnamed'), count(*),"
            " current_setting('max_connections')::int FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' GROUP BY 1 ORDER BY 2 DESC"
        )
        users = cursor.fetchall()
    used, most = sum(count for _, count, _ in users), users[0][2]
    if used >= FEW_CONNECTIONS * most:
        by = ", ".join(f"{count} {name}" for name, count, _ in users[:USERS_SHOWN])
        others = [name for _, name in sorted(_foreign(users), reverse=True)[:1]]
        stop = f" Stop {others[0]}, which is not Flywheel's." if others else ""
        yield Finding(f"{used} of {most} connections are in use, most by: {by}.{stop}")


def _foreign(users: list[tuple[str, int, int]]) -> Iterator[tuple[int, str]]:
    """Other programs that hold more than Flywheel's busiest part."""
    ours = [count for name, count, _ in users if name.startswith(OURS)]
    for name, count, _ in users:
        if not name.startswith(OURS) and count > max(ours, default=0):
            yield count, name


def _forget_worker(about: str, by: Any) -> str:
    Worker.objects.silent().filter(name=about).delete()
    return f"Forgot the worker {about}."


@condition(
    "worker_silent",
    "A worker stopped answering",
    todo="Its process is dead or frozen: start it again, or “kill -9” it so that it is started."
    " Its jobs are taken over by others. Forget it if it is not to come back.",
    button=Button("Forget", _forget_worker),
)
def silent_workers() -> Iterator[Finding]:
    for worker in Worker.objects.silent():
        says = f"The worker {worker.name} (process {worker.pid} on {worker.host}) "
        is_here = worker.host == socket.gethostname()
        yield Finding(
            says + f"is stopped. “kill -CONT {worker.pid}” lets it go on."
            if is_here and embedded.is_stopped(worker.pid)
            else f"{says}has not been heard of.",
            worker.name,
            worker.beat_at,
        )


@condition(
    "clock_skew",
    "The clock of a machine is wrong",
    todo="Synchronise the clock of that machine (chrony, systemd-timesyncd). Charts, schedules and"
    " the order of runs are wrong until then; jobs go by the database's clock.",
    severity=Severity.WARNING,
)
def skewed_clocks() -> Iterator[Finding]:
    hosts: dict[str, float] = {}
    for host, skew in Worker.objects.values_list("host", "skew_s"):
        if abs(skew) >= max(SKEW_S, abs(hosts.get(host, 0.0))):
            hosts[host] = skew
    for host, skew in hosts.items():
        yield Finding(
            f"The clock of {host} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the"
            " database's.",
            host,
        )


def _retry(about: str, by: Any) -> str:
    label, _, pk = about.partition(":")
    model = next((model for model in job_models() if model._meta.label_lower == label), None)
    job = model and model.objects.filter(pk=uuid_of(pk)).first()
    if not job or not jobs.restart(job, among=model.objects.all(), by=by, action="resumed"):
        return "This job is not one that failed."
    return f"Queued {noun(model)} “{job.name}” again."


@condition(
    "job_poisoned",
    "A job killed its workers",
    todo="Read its log: it probably needs more memory than its machines have. It is not tried"
    " again by itself.",
    severity=Severity.WARNING,
    button=Button("Queue it again", _retry),
)
def poisoned_jobs() -> Iterator[Finding]:
    """Those that were tried as often as allowed, and ended with their worker each time."""
    lost = _jobs(
        state=JobState.FAILED,
        attempt__gt=1,
        attempt__gte=F("max_attempts"),
        finished_at__gt=Now() - LOST_SHOWN,
    )
    for row in lost[:20]:
        label, pk = row["label_of_model"], row["pk"]
        kind = noun(apps.get_model(label)).capitalize()
        yield Finding(
            f"{kind} {pk} ended with its worker {row['attempt']} times.",
            f"{label}:{pk}",
            row["finished_at"],
        )


def _jobs(**filters: Any) -> models.QuerySet[Any]:
    """Of all kinds, in one query; `label_of_model` says which."""
    first, *rest = (
        model.objects.order_by()
        .filter(**filters)
        .annotate(label_of_model=models.Value(model._meta.label_lower))
        .values("label_of_model", "pk", "attempt", "created_at", "finished_at")
        for model in job_models()
    )
    return first.union(*rest, all=True)


@condition(
    "jobs_waiting",
    "Jobs wait for a worker",
    todo="Start more workers of the queue, or wait for those that are busy.",
    severity=Severity.WARNING,
)
def waiting_jobs() -> Iterator[Finding]:
    waiting = _jobs(state=JobState.QUEUED, created_at__lt=Now() - WAITS_LONG, sends__gt=0)
    queues: dict[str, datetime] = {}
    for row in waiting:
        queue = kind_of(apps.get_model(row["label_of_model"])()).queue
        queues[queue] = min(queues.get(queue, row["created_at"]), row["created_at"])
    for queue, since in queues.items():
        yield Finding(f"Jobs of the queue “{queue}” have been waiting.", queue, since)


@condition(
    "broker",
    "The broker does not answer",
    todo="Check that Valkey or Redis (BROKER_URL) runs and is not frozen or out of memory. Pages"
    " and receiving work without it; jobs start once it is back.",
    lane=Lane.BROKER,
    part="broker",
    for_operators=True,
    explains=_stopped("Valkey"),
)
def broker() -> Iterator[Finding]:
    with _answering:
        alive.client().ping()
    yield from ()


class Answering:
    """Since when this process has known the broker to answer again, after it did not."""

    def __init__(self) -> None:
        self.was_away, self.again_at = False, 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.was_away:
            self.again_at = time.monotonic() + SAID_AGAIN_S
        self.was_away = kind is not None

    def require_said(self) -> None:
        """Raises Unknown while marks may be missing that expired meanwhile."""
        if (left := self.again_at - time.monotonic()) > 0:
            raise Unknown(f"The broker is back; who is alive has {left:.0f} s more to say so.")


_answering = Answering()


@condition(
    "queue_unserved",
    "A queue has no worker",
    todo="Start one: “python -m flywheel.processes QUEUE”, or its container. What waits in the"
    " queue is kept.",
    lane=Lane.BROKER,
    part="queues",
    wait_s=15,
)
def unserved_queues() -> Iterator[Finding]:
    _answering.require_said()
    for queue in alive.missing(list(settings.QUEUES)):
        yield Finding(f"No worker of the queue “{queue}” has been heard of.", queue)


@condition(
    "beat_silent",
    "Nothing is scheduled",
    todo="Start beat: “python -m flywheel.processes beat”; or, where it runs, a worker of the queue"
    " “default”, which does what beat sends. Schedules, alerts of projects and recovery from lost"
    " messages rest until then.",
    lane=Lane.BROKER,
    part="beat",
)
def silent_beat() -> Iterator[Finding]:
    _answering.require_said()
    if alive.missing([alive.BEAT]):
        yield Finding("Beat has not been heard of.")


@condition(
    "disk_full",
    "A disk is full",
    todo="Free space on it: old logs, exports, checkpoints; shorten the retention of projects; or"
    " give the data folder a larger disk.",
    lane=Lane.MACHINE,
    part="disk",
)
def full_disk() -> Iterator[Finding]:
    yield from _disk(FULL, 1.1)


@condition(
    "disk_nearly_full",
    "A disk is nearly full",
    todo="Free space before it is full: nothing can be received then.",
    lane=Lane.MACHINE,
    severity=Severity.WARNING,
)
def nearly_full_disk() -> Iterator[Finding]:
    yield from _disk(NEARLY_FULL, FULL)


def _disk(least: float, below: float) -> Iterator[Finding]:
    for disk in disks():
        if least <= disk.share < below:
            yield Finding(
                f"The disk of {disk.folder} ({disk.place}) is {disk.share:.0%} full:"
                f" {disk.free / 2**30:.1f} GiB are free.",
                f"{socket.gethostname()}:{disk.place}",
            )


def _back_up(about: str, by: Any) -> str:
    schedule.ask_for_one()
    return "A backup is being made. It is listed here once it is done."


@condition(
    "backup_late",
    "No backup was made lately",
    todo="Read why the last one failed (its disk may be full, its bucket refuse it), mend that, and"
    " make one now. Until then a lost disk loses what came since.",
    severity=Severity.WARNING,
    button=Button("Back up now", _back_up),
)
def late_backup() -> Iterator[Finding]:
    if late := schedule.lateness(timezone.now()):
        says, since = late
        yield Finding(says, since=since)
