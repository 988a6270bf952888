"""What the operator's page shows of all projects besides what is wrong."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any

from django.db import connection
from django.urls import reverse

from apps.core.kinds import job_models, kind_of
from apps.core.models import ACTIVE_STATES, Attempts, Incident, Job, JobState, Worker
from apps.core.nouns import noun
from apps.core.watching.measures import Measured
from apps.promotion.models import Channel
from apps.promotion.watched import live_servers
from apps.registry.licenses import license_of
from apps.registry.models import Health, ModelKind, ModelVersion, Server
from flywheel import processes
from flywheel.commit import described
from flywheel.version import VERSION
from workers.lib.memory import gigabytes

BACKUPS = 5
MOST = 50
TABLES = 8  # the largest
ENDED = 10
PACKAGES = ("django", "celery", "torch", "transformers", "peft", "trl")
LOST = {Health.DOWN: 0, Health.UNLISTED: 1, Health.UNCHECKED: 2, Health.HEALTHY: 3}


@dataclass(frozen=True)
class JobRow:
    noun: str
    job: Job
    queue: str


@dataclass(frozen=True)
class WorkerRow:
    worker: Worker
    is_silent: bool
    runs: list[JobRow]


@dataclass(frozen=True)
class Machine:
    host: str
    memory_mb: int
    skew_s: float
    workers: list[WorkerRow]

    @property
    def has(self) -> dict[str, Any]:
        """What it says of itself (`placing.machine`)."""
        return next((row.worker.has for row in self.workers if row.worker.has), {})

    @property
    def gpus(self) -> str:
        """“2 × NVIDIA H200 (141 GB)”"""
        kinds = Counter((gpu["name"], gpu["memory_mb"]) for gpu in self.has.get("gpus", ()))
        return ", ".join(
            f"{n} × {name} ({gigabytes(memory * 2**20)})" for (name, memory), n in kinds.items()
        )


@dataclass(frozen=True)
class Queue:
    name: str
    length: float | None
    oldest_s: float | None
    workers: int
    is_optional: bool


@dataclass(frozen=True)
class ServerRow:
    server: Server
    is_live: bool
    page: str


@dataclass(frozen=True)
class BaseRow:
    """`license`: None where this machine does not have its folder."""

    version: ModelVersion
    license: str | None
    made: int
    channels: list[str]


def active_jobs() -> list[JobRow]:
    """The oldest first of each kind."""
    return [
        JobRow(noun(model), job, kind_of(job).queue)
        for model in job_models()
        for job in model.objects.filter(state__in=ACTIVE_STATES)
        .select_related("project")
        .order_by("created_at")[:MOST]
    ]


def machines(jobs: list[JobRow]) -> list[Machine]:
    silent = set(Worker.objects.silent().values_list("pk", flat=True))
    running = [row for row in jobs if row.job.state == JobState.RUNNING]
    rows = [
        WorkerRow(
            worker,
            worker.pk in silent,
            [
                row
                for row in running
                if row.job.worker == worker.of_jobs and row.queue == worker.queue
            ],
        )
        for worker in Worker.objects.all()
    ]
    found = []
    for host, of_host in groupby(rows, lambda row: row.worker.host):
        some = list(of_host)
        by_process = {row.worker.pid: row.worker.memory_mb for row in some}
        skew = max((row.worker.skew_s for row in some), key=abs)
        found.append(Machine(host, sum(by_process.values()), skew, some))
    return found


def queues(last: Mapping[str, Measured], on: list[Machine]) -> Iterator[Queue]:
    lengths = last.get("flywheel_queue_length")
    oldest = last.get("flywheel_queue_oldest_seconds")
    for name in processes.WORKERS:
        answering = [
            row
            for machine in on
            for row in machine.workers
            if row.worker.queue == name and not row.is_silent
        ]
        yield Queue(
            name,
            lengths.values.get((name,)) if lengths else None,
            (oldest.values.get((name,)) or None) if oldest else None,
            len(answering),
            name in processes.OPTIONAL,
        )


def servers() -> list[ServerRow]:
    """Those that do not answer first."""
    live = set(live_servers().values_list("pk", flat=True))
    rows = sorted(
        Server.objects.select_related("project"),
        key=lambda server: (LOST[Health(server.health)], server.pk not in live, server.name),
    )
    return [
        ServerRow(
            server,
            server.pk in live,
            reverse("registry:server", args=[server.project.slug, server.name]),
        )
        for server in rows[:MOST]
    ]


def locks() -> list[Attempts]:
    """Of people who failed to log in; those of accounts that do not exist have no name."""
    return list(Attempts.objects.locked().exclude(label="").order_by("-locked_until")[:MOST])


def ended(since: datetime) -> list[Incident]:
    over = Incident.objects.filter(ended_at__gt=since).order_by("-ended_at")
    return list(over[:ENDED])


def bases() -> list[BaseRow]:
    """With their licenses, under which what was made from them is used, too."""
    current = ModelVersion.objects.current().filter(kind=ModelKind.BASE).select_related("project")
    rows = list(current.order_by("project__slug", "name")[:MOST])
    made = _made_from([row.pk for row in rows])
    return [BaseRow(row, license_of(row), *made.get(row.pk, (0, []))) for row in rows]


def _made_from(bases: list[int]) -> dict[int, tuple[int, list[str]]]:
    """{base: (versions that were made from it, live channels that answer with one of these)}"""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE made(base, version) AS ("
            " SELECT id, id FROM registry_modelversion WHERE id = ANY(%s)"
            " UNION ALL SELECT made.base, m.id FROM made"
            " JOIN registry_modelversion m ON m.parent_id = made.version)"
            " SELECT base, version FROM made",
            [bases],
        )
        base_of = {made: base for base, made in cursor.fetchall()}
    counts = Counter(base_of.values())
    channels: dict[int, list[str]] = {base: [] for base in bases}
    live = Channel.objects.live().filter(current__in=base_of).order_by("name")
    for name, current in live.values_list("name", "current"):
        channels[base_of[current]].append(name)
    return {base: (counts[base] - 1, channels[base]) for base in bases}


def versions() -> list[tuple[str, str]]:
    found = [("Flywheel", described(VERSION)), ("Python", platform.python_version())]
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        found.append(("PostgreSQL", cursor.fetchone()[0]))
    for package in PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return found
