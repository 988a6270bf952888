"""A tenth of the runs of an installation deleted while it ingests. `python -m bench.deletion
[--rows 300000] [--folder DIR] [--rate 50]`, or of one that `bench.sizes` has loaded: `python -m
bench.deletion --folder FOLDER --project sizes --filters "agent_version=3&to=2026-10-20"`

Without `--filters`, stores some thousand runs through `store.ingest` and copies their rows in SQL
with other ids until there are enough (with words, steps and keys); every tenth run goes
(`user=leaving`). They are deleted as a worker does it, while a process stores and digests new rows
and another asks for the list's page through Django's test client. All of it on the embedded
PostgreSQL of the folder, without web server and broker: what is measured is the database and the
code. Rows are in the folder until `--fresh`. Prints a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.bodies import Text, row
from bench.ingest_cpu import database_s
from bench.peers import HOME, machine

DAYS, SEEDS, ROW_BYTES = 60, 3_000, 2_000
LEAVING, SLUG = "leaving", "bench"
# How an id, and so its time, is moved; the rest of it stays.
MOVED = (
    "(lpad(to_hex(('x' || substr(replace({0}::text, '-', ''), 1, 12))::bit(48)::bigint"
    " - n * 7001), 12, '0') || substr(replace({0}::text, '-', ''), 13))::uuid"
)
COPIED = {
    "trajectories_trajectory": {"id": MOVED, "external_id": "{0} || '-' || n"},
    "trajectories_content": {"trajectory_id": MOVED},
    "trajectories_searchtext": {"trajectory_id": MOVED},
    "trajectories_step": {"trajectory_id": MOVED},
    "trajectories_trajectorykey": {"trajectory_id": MOVED, "external_id": "{0} || '-' || n"},
}


def load(project: Any, rows: int) -> None:
    from django.db import connection, transaction

    from apps.trajectories import digest, partitions
    from apps.trajectories.actions.store import ingest
    from apps.trajectories.ids import month_of
    from apps.trajectories.models import Trajectory

    text, now = Text(1), datetime.now(UTC)
    with transaction.atomic():
        partitions.ensure({month_of(now - timedelta(days=day)) for day in range(DAYS + 40)})
    for first in range(0, SEEDS, 500):
        made = []
        for index in range(first, first + 500):
            at = now - timedelta(days=DAYS) * (index / SEEDS)
            sent = row(f"seed-{index:06d}", index, at, ROW_BYTES, text)
            made.append(sent | {"user_id": LEAVING if index % 10 == 0 else f"u-{index % 997}"})
        ingest(project=project, rows=made)
    while digest.step():
        pass
    times = rows // SEEDS - 1
    seeds = list(Trajectory.objects.filter(project=project).values_list("pk", flat=True))
    for table, changes in COPIED.items():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND"
                " is_generated = 'NEVER' ORDER BY ordinal_position",
                [table],
            )
            columns = [name for (name,) in cursor.fetchall()]
            said = [changes.get(name, "{0}").format(f"t.{name}") for name in columns]
            for first in range(1, times + 1, 10):
                cursor.execute(
                    f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(said)} FROM"
                    f" {table} AS t, generate_series({first}, {min(first + 9, times)}) AS n WHERE"
                    f" t.{'id' if 'id' in changes else 'trajectory_id'} = ANY(%s)",
                    [seeds],
                )
        print(f"  {table}: {Trajectory.objects.count():,} runs", flush=True)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def ingest_until(over: Any, slug: str, rate: float, counted: Any) -> None:
    """So many rows a second, digested; a process of its own."""
    set_up()
    from apps.core.models import Project
    from apps.trajectories import digest
    from apps.trajectories.actions.store import ingest

    project = Project.objects.get(slug=slug)
    text, n, began = Text(2, 2_000), 0, time.perf_counter()
    while not over.is_set():
        now = datetime.now(UTC)
        rows = [row(f"new-{os.getpid()}-{n + i}", i, now, ROW_BYTES, text) for i in range(10)]
        counted.value += ingest(project=project, rows=rows).accepted
        digest.step()
        n += len(rows)
        time.sleep(max(0.0, began + n / rate - time.perf_counter()))


def read_until(over: Any, slug: str, times: Any) -> None:
    """The first page of the list, again and again; milliseconds go into the queue."""
    set_up()
    from django.conf import settings
    from django.test import Client
    from django.urls import reverse

    from apps.core.models import Project

    settings.STORAGES["staticfiles"] = {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
    }
    project, client = Project.objects.get(slug=slug), Client(HTTP_HOST="localhost")
    client.force_login(project.memberships.first().user)
    url = reverse("trajectories:list", args=[slug]) + "?since=30d"
    for _ in range(3):
        assert client.get(url).status_code == 200
    while not over.is_set():
        at = time.perf_counter()
        assert client.get(url).status_code == 200
        times.put((time.perf_counter() - at) * 1000)
        time.sleep(0.1)


def set_up() -> None:
    import django

    django.setup()


def made_project(slug: str) -> Any:
    from django.contrib.auth import get_user_model

    from apps.core.actions import create_project
    from apps.core.models import Project

    if found := Project.objects.filter(slug=slug).first():
        return found
    admin, _ = get_user_model().objects.get_or_create(username="admin")
    return create_project(slug=slug, name="Bench", by=admin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=float, default=50.0, help="rows a second that arrive")
    parser.add_argument("--folder", type=Path, default=HOME / "deletion")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--project", default=SLUG)
    parser.add_argument("--filters", default="", help="of the runs that go; nothing is loaded")
    chosen = parser.parse_args()
    if chosen.fresh:
        shutil.rmtree(chosen.folder, ignore_errors=True)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    os.environ |= {
        "FLYWHEEL_DATA_DIR": str(chosen.folder),
        "DJANGO_SETTINGS_MODULE": "flywheel.settings",
    }
    from flywheel import embedded

    embedded.ensure()
    set_up()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    print(json.dumps(measure(chosen), indent=1))


def measure(chosen: Any) -> dict[str, Any]:
    from django.db import connection

    from apps.core import runner
    from apps.trajectories.erasure.operations import Confirmed, start

    project = made_project(chosen.project)
    if not chosen.filters and project.trajectories.count() < chosen.rows // 2:
        load(project, chosen.rows)
    slug, filters = project.slug, chosen.filters or f"user={LEAVING}"
    begun = get_context("spawn")
    over, counted, times = begun.Event(), begun.Value("q", 0), begun.Queue()
    others = [
        begun.Process(target=ingest_until, args=(over, slug, chosen.rate, counted)),
        begun.Process(target=read_until, args=(over, slug, times)),
    ]
    for one in others:
        one.start()
    before = [times.get() for _ in range(40)]
    had = project.trajectories.count()
    given = Confirmed(filters=filters, confirm=project.name)
    by = project.memberships.first().user
    job = start(project=project, by=by, given=given)
    while not times.empty():
        before.append(times.get())
    arrived, began, cpu = counted.value, time.perf_counter(), time.process_time()
    theirs = database_s()
    runner.run(job)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    theirs = database_s() - theirs
    arrived = counted.value - arrived
    over.set()
    seen = []
    while not times.empty():
        seen.append(times.get())
    for one in others:
        one.join()
    job.refresh_from_db()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        size = cursor.fetchone()[0]
    return {
        "machine": machine(),
        "load": [round(one, 1) for one in os.getloadavg()],
        "runs": had,
        "result": job.result,
        "state": f"{job.state} {job.error}",
        "seconds": round(seconds, 1),
        "cpu_s_of_the_worker": round(cpu, 1),
        "cpu_s_of_its_database_process": round(theirs, 1),
        "runs_per_second": round(job.done / seconds),
        "list_ms_while_ingesting": percentiles(before),
        "list_ms_while_deleting": percentiles(seen),
        "ingested_meanwhile": arrived,
        "database_gb": round(size / 1e9, 2),
    }


def percentiles(seen: list[float]) -> dict[str, float]:
    p50, p95 = np.percentile(seen, [50, 95]).tolist()
    return {"p50": round(p50, 1), "p95": round(p95, 1), "n": len(seen)}


if __name__ == "__main__":
    main()
