"""What can be wrong with an installation on several machines, or behind a pooler."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db import connection

from apps.core.data_folder import identity
from apps.core.models import Worker
from apps.core.stores import store
from apps.core.watching.conditions import Finding, Severity, condition
from flywheel.postgres.direct import direct, has_pooler, is_pooled
from flywheel.postgres.watched import WATCH

# Connections: of a web process (8 threads, its watch, its checks, its watcher), and of a worker for
# itself and for each of its tasks (its own and its heartbeat's).
OF_WEB, OF_WORKER, OF_TASK = 11, 2, 2
OF_REST = 10  # the endpoints, beat, commands


def common() -> dict[str, Any]:
    """What all processes must have in common, of this one."""
    key = hashlib.sha256(f"flywheel-machine-{settings.SECRET_KEY}".encode()).hexdigest()[:12]
    there = settings.STORAGES["artifacts"].get("OPTIONS", {})
    place = "/".join(there[name] for name in ("bucket_name", "location") if there.get(name))
    return {"key": key, "store": place, "folder": identity() if store().is_here else ""}


@condition(
    "machines_differ",
    "A machine has other settings than the web processes",
    todo="Give all processes the same SECRET_KEY and FLYWHEEL_ARTIFACTS, and start them again."
    " Without a bucket, all of them must see one data folder.",
)
def machines_that_differ() -> Iterator[Finding]:
    ours, found = common(), dict[str, str]()
    for host, has in Worker.objects.values_list("host", "has"):
        theirs = has.get("common", ours)
        if theirs["key"] != ours["key"]:
            found[host] = "has another SECRET_KEY: it cannot read what others encrypted or signed."
        elif theirs["store"] != ours["store"]:
            found[host] = "keeps files elsewhere (FLYWHEEL_ARTIFACTS): others do not find them."
        elif theirs["folder"] != ours["folder"]:
            found[host] = (
                "has a data folder of its own, and FLYWHEEL_ARTIFACTS names no bucket: what one"
                " machine stores another cannot read."
            )
    for host, says in found.items():
        yield Finding(f"{host} {says}", host)


@condition(
    "pooler",
    "A pooler stands where PostgreSQL should",
    todo="Let DATABASE_URL name the pooler and DATABASE_DIRECT_URL PostgreSQL itself"
    " (docs/machines.md#pgbouncer).",
)
def misplaced_pooler() -> Iterator[Finding]:
    if not is_pooled() and has_pooler(connection):
        yield Finding(
            "DATABASE_URL leads to a pooler, and DATABASE_DIRECT_URL is not set: locks, prepared"
            " statements and notifications break."
        )
    elif is_pooled() and has_pooler(direct()):
        yield Finding("DATABASE_DIRECT_URL leads to a pooler, not to PostgreSQL itself.")


@condition(
    "connection_budget",
    "All processes together may need more connections than PostgreSQL allows",
    todo="Raise max_connections, run fewer processes, or put PgBouncer between"
    " (docs/machines.md#connections).",
    severity=Severity.WARNING,
)
def connection_budget() -> Iterator[Finding]:
    """Behind a pooler its own limits hold."""
    if is_pooled():
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FILTER (WHERE application_name = %s),"
            " current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int FROM pg_stat_activity",
            [WATCH],
        )
        webs, most = cursor.fetchone()
    workers = {(row.host, row.pid): row for row in Worker.objects.all()}
    tasks = sum(Worker.objects.values_list("at_once", flat=True))
    needed = webs * OF_WEB + len(workers) * OF_WORKER + tasks * OF_TASK + OF_REST
    if needed > most:
        yield Finding(
            f"{webs} web processes and {len(workers)} workers may need {needed} connections;"
            f" PostgreSQL allows {most}."
        )


@condition(
    "sandbox_refuses",
    "Code of graders cannot be run",
    todo="Allow user namespaces on that machine, or say by FLYWHEEL_SANDBOX_COMMAND or"
    " FLYWHEEL_SANDBOX_WEAK what guards it instead (docs/sandbox.md).",
    part="sandbox",
)
def refusing_sandboxes() -> Iterator[Finding]:
    yield from _sandboxes("refuses")


@condition(
    "sandbox_weak",
    "Code of graders is guarded by less than it could be",
    todo="It was accepted by FLYWHEEL_SANDBOX_WEAK. Allow user namespaces on that machine and unset"
    " it, or put a container around the sandbox (docs/sandbox.md).",
    severity=Severity.WARNING,
)
def weak_sandboxes() -> Iterator[Finding]:
    yield from _sandboxes("accepted")


def _sandboxes(what: str) -> Iterator[Finding]:
    """Of machines that evaluate or train."""
    found = dict[str, str]()
    for host, has in Worker.objects.values_list("host", "has"):
        if says := has.get("sandbox", {}).get(what):
            found[host] = says
    for host, says in found.items():
        yield Finding(f"{host}: {says}", host)
