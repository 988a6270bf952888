"""Reading, as the number of trajectories grows. `python -m bench.explore [--rows
10000,100000,1000000]`

Loads synthetic runs of 30 days into three projects (through `store.ingest`, in this process), then
asks a running `manage.py up` over HTTP for the pages and the API. The data stay in
var/bench/explore: a second run goes on from there, `--fresh` begins anew. Writes
var/bench/explore.json.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import numpy as np

from bench.bodies import MODELS, RARE, TOOLS, VERSIONS, Text, long_run, row
from bench.peers import HOME, Flywheel, machine, stop_servers_on_sigterm

DAYS = 30
ROW_BYTES, BATCH = 4000, 5000
SHARES = (7, 2, 1)  # of ten rows, by project; the first is measured
LONG_RUN, LONG_MESSAGES = "long-run", 33_000
REQUESTS, WARM_UP, BUDGET_S = 40, 3, 30.0
CHARTS = ("chart", "trend", "count", "sums", "histogram", "stats")
GOALS_MS = {
    "list 24 h": 150,
    "list 30 d": 550,
    "API list 24 h": 150,
    "API list 30 d": 550,
    "search rare word": 1000,
    "search common word": 1000,
    "search word of few rows": 1000,
    "detail of 33,000 messages": 1000,
}


@dataclass
class Reader:
    """One connection with a session and an API key."""

    server: Flywheel
    session: str

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)

    def get(self, url: str) -> tuple[float, int, bytes]:
        """Milliseconds until the last byte, status, body."""
        headers = {"Cookie": f"sessionid={self.session}", "Accept-Encoding": "identity"}
        if url.startswith("/api/"):
            headers = self.server.headers
        at = time.perf_counter()
        try:
            self.connection.request("GET", url, headers=headers)
            answer = self.connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return (time.perf_counter() - at) * 1000, 0, b""
        return (time.perf_counter() - at) * 1000, answer.status, body

    def measure(self, urls: list[str]) -> dict[str, Any]:
        """The URLs in turn, until there are REQUESTS of them or the budget is spent (at least
        five).
        """
        for url in urls[:WARM_UP]:
            self.get(url)
        seen, started = [], time.perf_counter()
        while len(seen) < REQUESTS and (len(seen) < 5 or time.perf_counter() - started < BUDGET_S):
            seen.append(self.get(urls[len(seen) % len(urls)]))
        p50, p95 = np.percentile([ms for ms, _, _ in seen], [50, 95]).tolist()
        bad = [status for _, status, _ in seen if status != 200]
        size = max(len(body) for _, _, body in seen)
        return {
            "p50_ms": round(p50, 1),
            "p95_ms": round(p95, 1),
            "n": len(seen),
            "kb": size // 1000,
            "not_200": bad[:3],
        }


def load(projects: list[Any], start: int, end: int, text: Text) -> float:
    """Rows `start` to `end`, in the order of their time, over the last 30 days. Rows per second
    (made and stored).
    """
    from apps.trajectories.actions.store import ingest

    at, now = time.perf_counter(), datetime.now(UTC)
    step = timedelta(days=DAYS) / max(1, end - start)
    for first in range(start, end, BATCH):
        made: list[list[dict]] = [[] for _ in projects]
        for index in range(first, min(end, first + BATCH)):
            owner = np.searchsorted(np.cumsum(SHARES), index % 10, side="right")
            time_of = now - timedelta(days=DAYS) + (index - start) * step
            made[owner].append(row(f"run-{index:09d}", index, time_of, ROW_BYTES, text))
        for project, rows in zip(projects, made, strict=True):
            done = ingest(project=project, rows=rows)
            if done.accepted != len(rows):
                raise SystemExit(
                    f"{done.accepted} of {len(rows)} rows accepted: {done.rejected[:1]}"
                )
        if first // BATCH % 20 == 0:
            print(
                f"  {first + BATCH:,} rows,"
                f" {(first + BATCH - start) / (time.perf_counter() - at):,.0f}/s",
                flush=True,
            )
    return (end - start) / (time.perf_counter() - at)


def views(project: Any, text: Text, reader: Reader) -> Iterator[tuple[str, list[str]]]:
    """What is asked: a name, and URLs that differ in the value of the filter."""
    from django.urls import reverse

    from apps.trajectories.models import Trajectory

    page, api = reverse("trajectories:list", args=[project.slug]), "/api/v1/trajectories/"
    filters = ["", "&outcome=failure", *(f"&agent_version={name}" for name in VERSIONS[:4])]
    filters += [
        *(f"&tool={name}" for name in TOOLS[:4]),
        f"&model={MODELS[0]}",
        "&tag=vip&outcome=failure",
    ]
    for label, since in (("24 h", "24h"), ("30 d", "30d")):
        yield f"list {label}", [f"{page}?since={since}"]
        yield f"list {label}, filtered", [f"{page}?since={since}{narrow}" for narrow in filters[1:]]
        yield f"API list {label}", [f"{api}?since={since}&limit=50"]
        yield (
            f"API list {label}, filtered",
            [f"{api}?since={since}&limit=50{narrow}" for narrow in filters[1:]],
        )
    yield "API list 30 d, the next pages", list(pages(reader, f"{api}?since=30d&limit=50", 20))
    yield "search rare word", [f"{page}?since=30d&q={RARE}", f"{page}?q={RARE}"]
    yield (
        "search word of few rows",
        [f"{page}?since=30d&q={word}" for word in text.words[5000:5010]],
    )
    yield "search common word", [f"{page}?since=30d&q={word}" for word in text.words[:3]]
    yield (
        "API search common word",
        [f"{api}?since=30d&limit=50&q={word}" for word in text.words[:3]],
    )
    usual = (
        Trajectory.objects.filter(project=project)
        .order_by("-started_at")
        .values_list("pk", flat=True)[:2000]
    )
    few = random.sample(list(usual), 20)
    yield "detail", [reverse("trajectories:detail", args=[project.slug, pk]) for pk in few]
    run = Trajectory.objects.select_related("project").get(external_id=LONG_RUN)
    long = reverse("trajectories:detail", args=[run.project.slug, run.pk])
    yield "detail of 33,000 messages", [long]
    if chunks := list(chunks_of(reader, long)):
        yield "its further chunks", chunks
    yield "overview", [reverse("dashboard:home", args=[project.slug])]
    for name in ("failure_rate", "performance", "promotion_effect"):
        yield (
            f"overview, {name.replace('_', ' ')}",
            [reverse(f"dashboard:{name}", args=[project.slug]) + "?since=30d"],
        )
    explore, metrics = reverse("dashboard:explore", args=[project.slug]), "/api/v1/metrics/"
    for by in ("", "agent_version", "tool"):
        yield (
            f"API metrics 30 d, latency by {by or 'nothing'}",
            [f"{metrics}?measure=latency&since=30d&by={by}"],
        )
    yield (
        "API metrics all time, failure rate by model",
        [f"{metrics}?measure=failure_rate&by=model"],
    )
    yield (
        "API metrics 30 d, from rows",
        [f"{metrics}?measure=latency&since=30d&by=model&tool={name}" for name in TOOLS[:4]],
    )
    yield "charts", [f"{explore}?measure=cost&by=model&since=30d"]
    yield "list 30 d, sorted by latency", [f"{page}?since=30d&sort=-latency"]
    yield "list, oldest first", [f"{page}?sort=started"]
    live = reverse("trajectories:live_rows", args=[project.slug])
    yield (
        "live tail",
        [
            f"{live}?after=1.1",
            f"{live}?after=1.1&outcome=failure",
            f"{live}?after=1.1&cost_min=0.5",
        ],
    )
    for name, url in charts(project.slug):
        for since in ("24h", "30d"):
            yield f"{name} {since}", [f"{url}?since={since}"]


def pages(reader: Reader, first: str, count: int) -> Iterator[str]:
    """The URLs of the pages after the first; `next` is a URL or a cursor."""
    url = first
    for _ in range(count):
        following = json.loads(reader.get(url)[2]).get("next")
        if not following:
            return
        url = (
            following[following.index("/api/") :]
            if "/api/" in following
            else f"{first}&cursor={following}"
        )
        yield url


def chunks_of(reader: Reader, url: str, count: int = 20) -> Iterator[str]:
    """What the page of a long run loads while one scrolls: htmx's next fragment, and the next one
    in that.
    """
    for _ in range(count):
        tag = re.search(rb'<[^>]*hx-trigger="[^"]*(?:revealed|intersect)[^>]*>', reader.get(url)[2])
        found = re.search(rb'hx-get="([^"]+)"', tag[0]) if tag else None
        if not found:
            return
        url = unescape(found[1].decode())
        yield url


def charts(slug: str) -> Iterator[tuple[str, str]]:
    """The app's own pages of charts and counts, whatever there are."""
    from django.urls import reverse

    from apps.trajectories.urls import urlpatterns

    for pattern in urlpatterns:
        if any(word in (pattern.name or "") for word in CHARTS) and not pattern.pattern.converters:
            yield (
                f"trajectories {pattern.name}",
                reverse(f"trajectories:{pattern.name}", args=[slug]),
            )


def prepare(slug: str = "workplace-assistant") -> tuple[list[Any], str]:
    """The three projects, and a session of the admin."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    from apps.core.actions import create_project
    from apps.core.models import Project

    admin = get_user_model().objects.get(username="admin")
    for number in (2, 3):
        if not Project.objects.filter(slug=f"bench-{number}").exists():
            create_project(slug=f"bench-{number}", name=f"Bench {number}", by=admin)
    client = Client()
    client.force_login(admin)
    return [
        Project.objects.get(slug=name) for name in (slug, "bench-2", "bench-3")
    ], client.cookies["sessionid"].value


def tidy() -> dict[str, Any]:
    """As autovacuum does some minutes after a load; the sizes on disk."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT pg_database_size(current_database())")
        return {"database_gb": round(cursor.fetchone()[0] / 1e9, 3)}


def measure(server: Flywheel, sizes: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    from apps.trajectories.actions.store import ingest
    from apps.trajectories.models import Trajectory

    projects, session = prepare()
    text, reader = Text(1), Reader(server, session)
    # In the smallest project: on a page of the API's list its megabytes would be all that is
    # measured.
    ingest(project=projects[-1], rows=[long_run(LONG_RUN, LONG_MESSAGES, Text(2, 2000))])
    for size in sizes:
        have = Trajectory.objects.exclude(external_id=LONG_RUN).count()
        if have > size:
            print(f"{size:,}: there are {have:,} rows already (--fresh begins anew)")
            continue
        found: dict[str, Any] = {"rows": size, "machine": machine()}
        if have < size:
            found["load_rows_per_second"] = round(load(projects, have, size, text))
            started = time.perf_counter()
            while not server.digested():
                time.sleep(0.5)
            found["digested_after_s"] = round(time.perf_counter() - started, 1)
        found |= tidy()
        found["views"] = {}
        for name, urls in views(projects[0], text, reader):
            found["views"][name] = reader.measure(urls)
            print(f"{size:>9,} {name}: {found['views'][name]}", flush=True)
        yield size, found


def show(report: dict[str, Any]) -> None:
    """p50 / p95 in ms by number of rows, the growth of p95, and the goals."""
    sizes = sorted(report, key=int)
    print(f"| p50 / p95 ms | {' | '.join(f'{int(size):,}' for size in sizes)} | growth | goal |")
    for name in report[sizes[-1]]["views"]:
        seen = [report[size]["views"].get(name) for size in sizes]
        cells = [
            f"{item['p50_ms']} / {item['p95_ms']}{' !' * bool(item['not_200'])}" if item else "–"
            for item in seen
        ]
        growth = f"×{seen[-1]['p95_ms'] / seen[0]['p95_ms']:.1f}" if seen[0] else "–"
        goal = GOALS_MS.get(name)
        verdict = f"{goal} {'met' if seen[-1]['p95_ms'] < goal else 'MISSED'}" if goal else ""
        print(f"| {name} | {' | '.join(cells)} | {growth} | {verdict} |")
    for key in ("load_rows_per_second", "digested_after_s", "database_gb"):
        print(f"| {key} | {' | '.join(str(report[size].get(key, '–')) for size in sizes)} | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="10000,100000,1000000", help="sizes, by commas")
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run loaded")
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    folder, output = HOME / "explore", HOME / "explore.json"
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
        output.unlink(missing_ok=True)
    server = Flywheel("postgresql", folder, keep=True)
    report = json.loads(output.read_text()) if output.exists() else {}
    try:
        server.start()
        for name in ("DATABASE_URL", "BROKER_URL"):
            os.environ.pop(name, None)
        os.environ |= {
            "FLYWHEEL_DATA_DIR": str(folder),
            "DJANGO_SETTINGS_MODULE": "flywheel.settings",
        }
        import django

        django.setup()
        for size, found in measure(server, sorted(map(int, chosen.rows.split(",")))):
            report[str(size)] = found
            output.write_text(json.dumps(report, indent=1))
    finally:
        server.stop()
    if report:
        show(report)


if __name__ == "__main__":
    main()
