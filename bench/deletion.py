"""A tenth of the runs of an installation deleted while it ingests. `python -m bench.deletion
[--rows 300000] [--folder DIR] [--rate 50]`

Stores some thousand runs through `store.ingest`, copies their rows in SQL with other ids until
there are enough (with words, steps and keys), and starts `manage.py up`. Then every tenth run is
deleted by filter (`user=leaving`) while another process sends rows and a reader asks for the list.
Rows are in the folder until `--fresh`. Prints a JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bench.bodies import Text, row
from bench.explore import Reader, prepare
from bench.peers import HOME, Flywheel, machine, stop_servers_on_sigterm

DAYS, SEEDS, ROW_BYTES = 60, 3_000, 2_000
LEAVING = "leaving"
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


def send_until(over: threading.Event, server: Flywheel, rate: float, counted: dict) -> None:
    """Rows to the API, so many a second."""
    text, n, began = Text(2, 2_000), 0, time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = server.headers | {"Content-Type": "application/json"}
    while not over.is_set():
        now = datetime.now(UTC)
        rows = [row(f"new-{began:.0f}-{n + i}", i, now, ROW_BYTES, text) for i in range(10)]
        connection.request("POST", "/api/v1/trajectories/batch/", json.dumps(rows), headers)
        response = connection.getresponse()
        status, answer = response.status, json.loads(response.read())
        counted["statuses"][status] = counted["statuses"].get(status, 0) + 1
        counted["accepted"] += answer.get("accepted", 0)
        n += len(rows)
        time.sleep(max(0.0, began + n / rate - time.perf_counter()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=float, default=50.0, help="rows a second that arrive")
    parser.add_argument("--folder", type=Path, default=HOME / "deletion")
    parser.add_argument("--fresh", action="store_true")
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    if chosen.fresh:
        shutil.rmtree(chosen.folder, ignore_errors=True)
    server = Flywheel("postgresql", chosen.folder, keep=True)
    try:
        server.start()
        for name in ("DATABASE_URL", "BROKER_URL"):
            os.environ.pop(name, None)
        os.environ |= {
            "FLYWHEEL_DATA_DIR": str(chosen.folder),
            "DJANGO_SETTINGS_MODULE": "flywheel.settings",
        }
        import django

        django.setup()
        print(json.dumps(measure(server, chosen), indent=1))
    finally:
        server.stop()


def measure(server: Flywheel, chosen: Any) -> dict[str, Any]:
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.urls import reverse

    from apps.trajectories.erasure.operations import Confirmed, start
    from apps.trajectories.models import DataDeletion

    (project, *_), session = prepare()
    if project.trajectories.count() < chosen.rows // 2:
        load(project, chosen.rows)
    reader = Reader(server, session)
    url = reverse("trajectories:list", args=[project.slug]) + "?since=30d"
    before = reader.measure([url])
    over, counted = threading.Event(), {"accepted": 0, "statuses": {}}
    sender = threading.Thread(target=send_until, args=(over, server, chosen.rate, counted))
    sender.start()
    beside = reader.measure([url])
    had = project.trajectories.count()
    given = Confirmed(filters=f"user={LEAVING}", confirm=project.name)
    job = start(project=project, by=get_user_model().objects.get(username="admin"), given=given)
    began, load_before, seen = time.perf_counter(), os.getloadavg()[0], []
    while DataDeletion.objects.active().filter(pk=job.pk).exists():
        seen.append(reader.get(url))
        time.sleep(0.2)
    seconds = time.perf_counter() - began
    over.set()
    sender.join()
    job.refresh_from_db()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        size = cursor.fetchone()[0]
    p50, p95 = np.percentile([ms for ms, _, _ in seen], [50, 95]).tolist()
    return {
        "machine": machine(),
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "runs": had,
        "deleted": job.result,
        "state": f"{job.state} {job.error}",
        "seconds": round(seconds, 1),
        "runs_per_second": round(job.done / seconds),
        "list_before_ms": before,
        "list_while_ingesting_ms": beside,
        "list_while_deleting_ms": {
            "p50_ms": round(p50, 1),
            "p95_ms": round(p95, 1),
            "n": len(seen),
            "not_200": [status for _, status, _ in seen if status != 200][:5],
        },
        "ingested_meanwhile": counted,
        "database_gb": round(size / 1e9, 2),
    }


if __name__ == "__main__":
    main()
