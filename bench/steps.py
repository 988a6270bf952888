"""Questions about steps, over HTTP. `python -m bench.steps [--runs 1000000] [--folder F]
[--port 8877] [--size 3000] [--parts sizes,disk,warm,cold,follow]`

`bench.many_runs` loads runs of ten steps each, with scores; what is there is kept, and a load that
was cut off goes on. A running `manage.py up` is then asked by page, API and export: warm, and each
question once with the files of the database dropped from the cache. Beside the time of a request
stands the processor time of PostgreSQL, which other programs on the machine disturb less. `--size`
runs go through `store.ingest` and `digest`, for the disk that steps take beside all else of a run.
Writes var/bench/steps.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.bodies import RARE, Text
from bench.explore import Reader
from bench.many_runs import OF_VERSION, VERSIONS, Shape, load, templates
from bench.peers import HOME, Flywheel, machine, stop_servers_on_sigterm
from flywheel.embedded import Layout

OUTPUT = HOME / "steps.json"
REQUESTS, WARM_UP, BUDGET_S = 20, 2, 2.5
GOAL_MS = 300
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
SEARCH = "kind=tool&name=search&failed_or_over=2"


def questions(runs: int) -> Iterator[tuple[str, list[str]]]:
    """A name, and queries of steps that differ in a value."""
    cases = [f"case{runs * n // 9}" for n in range(1, 9)]
    words = Text(1).words
    yield "1 search, failed or over 2 s, version 7", [f"{SEARCH}&agent_version=7"]
    yield (
        "1 the same of other versions",
        [f"{SEARCH}&agent_version={version}" for version in VERSIONS],
    )
    yield "2 p95 of each tool by version", ["kind=tool&measure=p95&split=agent_version"]
    yield "2 p95 of each tool, 24 h", ["kind=tool&since=24h"]
    yield "2 p95 of each tool, version 7", ["kind=tool&agent_version=7"]
    yield (
        "2 p95 of a tool by version",
        [f"name={name}&by=agent_version" for name in ("search", "get_order")],
    )
    yield "3 arguments contain a rare word", [f"arguments={case}" for case in cases]
    yield "3 arguments contain a common word", [f"arguments={word}" for word in words[:4]]
    yield (
        "3 arguments contain a word of some runs",
        [f"arguments={words[n]}" for n in (60, 150, 400, 1000, 3000, 9000)],
    )
    yield "newest", [""]
    yield "failed tool calls", ["kind=tool&status=error"]
    yield (
        "a tool's calls over 2 s",
        [f"name={name}&duration_min=2" for name in ("get_order", "cancel_ticket", "search")],
    )
    yield "tool calls over 60 s", ["kind=tool&duration_min=60"]
    yield "slow tools, slowest first", ["kind=tool&duration_min=2&sort=-duration"]
    yield (
        "a version's model calls, dearest first",
        [f"kind=model&agent_version={version}&sort=-cost" for version in ("2", "7", "12")],
    )
    yield "model calls, dearest first, 24 h", ["kind=model&since=24h&sort=-cost"]
    yield "steps of a version", [f"agent_version={version}" for version in ("1", "7", "12")]
    yield "error contains", [f"error={word}" for word in ("declined", *cases[:3])]
    yield "a name that nothing has", ["name=nothing&status=error"]
    yield "a run's steps", [f"run=run-{runs * n // 9:09d}" for n in range(1, 9)]
    yield "with a score under 0.01", ["score=relevance&score_value_max=0.01"]
    yield "with a score, in version 7", ["score=relevance&score_value_max=0.5&agent_version=7"]


def of_scores() -> Iterator[tuple[str, list[str]]]:
    yield "scores, newest", [""]
    yield "scores of a name", ["name=rating", "name=helpful&score_is=no"]
    yield "scores in a range", ["name=relevance&score_value_max=0.1"]
    yield "mean scores by version, 7 d", ["since=7d&by=agent_version"]
    yield "mean of a score by day", ["name=rating&by=day"]


def of_runs(runs: int) -> Iterator[tuple[str, list[str]]]:
    """As `bench.explore` asks."""
    words = Text(1).words
    yield "list", ["since=30d", ""]
    yield (
        "list, filtered",
        [
            "since=30d&outcome=failure",
            "since=30d&agent_version=12",
            "since=30d&tool=search",
            "since=30d&tag=vip&outcome=failure",
        ],
    )
    yield "list of an old version", ["agent_version=1", "agent_version=3"]
    yield "search rare word", [f"since=30d&q={RARE}", f"q={RARE}"]
    yield "search word of one run", [f"q=case{runs * n // 9}" for n in range(1, 9)]
    yield "search common word", [f"since=30d&q={word}" for word in words[:3]]
    yield "list by a score", ["score=rating&score_value_max=1"]


def addresses(slug: str, runs: int) -> Iterator[tuple[str, str, list[str]]]:
    """(question, where it is asked, URLs)."""
    page = f"/p/{slug}/trajectories"
    for what, asked in (("steps", questions(runs)), ("scores", of_scores())):
        doors = {
            "page": f"{page}/{what}/",
            "chart": f"{page}/{what}/chart/",
            "API": f"/api/v1/{what}/",
            "API figures": f"/api/v1/{what}/metrics/",
        }
        for name, queries in asked:
            for door, path in doors.items():
                yield name, door, [f"{path}?{_without(query, door)}" for query in queries]
    for name, queries in of_runs(runs):
        yield name, "page", [f"{page}/?{query}" for query in queries]
        yield name, "API", [f"/api/v1/trajectories/?{query}" for query in queries]


def _without(query: str, door: str) -> str:
    """Pages know all; the API's list no chart, its figures no order and no measure."""
    foreign = {"API": ("measure", "by", "split"), "API figures": ("measure", "sort")}.get(door, ())
    return "&".join(part for part in query.split("&") if part.split("=")[0] not in foreign)


def cpu_ms(parent: int) -> float:
    """Of the children of a process, those that have ended included."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(path.parent.name) == parent:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == parent:
            ticks += sum(map(int, fields[11:13]))
    return ticks * TICK_MS


def postmaster(folder: Path) -> int:
    return int((Layout.of(folder.resolve()).postgres / "postmaster.pid").read_text().split()[0])


def drop_caches(folder: Path) -> None:
    """The database's files leave the cache of the operating system; no other program's do."""
    for path in (Layout.of(folder.resolve()).postgres / "base").rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(reader: Reader, folder: Path, urls: list[str]) -> dict[str, Any]:
    parent = postmaster(folder)
    for url in urls[:WARM_UP]:
        reader.get(url)
    seen, costs, started = [], [], time.perf_counter()
    while len(seen) < REQUESTS and (len(seen) < 3 or time.perf_counter() - started < BUDGET_S):
        before = cpu_ms(parent)
        seen.append(reader.get(urls[len(seen) % len(urls)]))
        costs.append(cpu_ms(parent) - before)
    times = [ms for ms, _, _ in seen]
    p50, p95 = np.percentile(times, [50, 95]).tolist()
    return {
        "p50_ms": round(p50, 1),
        "p95_ms": round(p95, 1),
        "cpu_ms": round(float(np.mean(costs)), 1),
        "n": len(seen),
        "not_200": [status for _, status, _ in seen if status != 200][:3],
    }


def cold(reader: Reader, folder: Path, urls: list[str]) -> float:
    drop_caches(folder)
    ms, status, _ = reader.get(urls[0])
    return round(ms, 1) if status == 200 else -status


def exported(reader: Reader, url: str) -> dict[str, Any]:
    ms, status, body = reader.get(url)
    return {"ms": round(ms), "status": status, "rows": body.count(b"\n"), "mb": len(body) // 10**6}


def follow(reader: Reader, slug: str) -> dict[str, Any]:
    """From the chart to its rows, and from rows to their places: what does not lead there."""
    page = f"/p/{slug}/trajectories/steps/"
    chart = reader.get(f"{page}chart/?kind=tool&measure=p95&split=agent_version")[2].decode()
    source = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', chart, re.DOTALL)
    assert source, chart[:500]
    links = [link for trace in json.loads(source[1])["data"] for link in trace["meta"]["links"]]
    times, wrong, places = [], [], []
    for link in links:
        ms, status, body = reader.get(page + link)
        times.append(ms)
        found = re.findall(r'<tr data-row>.*?href="([^"]+)"', body.decode(), re.DOTALL)
        places += found[:2]
        if status != 200 or not found:
            wrong.append(link)
    lost, took = [], []
    for place in random.Random(1).sample(places, 20):
        url, _, anchor = unescape(place).partition("#")
        ms, status, body = reader.get(url)
        took.append(ms)
        if status != 200 or (anchor and f'id="{anchor}"'.encode() not in body):
            lost.append(place)
    return {
        "links": len(links),
        "links_p95_ms": round(float(np.percentile(times, 95)), 1),
        "without_rows": wrong[:3],
        "places": len(took),
        "places_p95_ms": round(float(np.percentile(took, 95)), 1),
        "lost": lost[:3],
    }


def sizes() -> dict[str, int]:
    """Bytes on disk of each partitioned table, of the keys and of the totals of steps."""
    from django.db import connection

    from apps.trajectories.partitions import TABLES

    with connection.cursor() as cursor:
        found = {}
        for table in (*TABLES, "trajectories_trajectorykey", "trajectories_steptotal"):
            cursor.execute(
                "SELECT coalesce(sum(pg_total_relation_size(relid)), pg_total_relation_size(%s))"
                " FROM pg_partition_tree(%s::regclass)",
                [table, table],
            )
            found[table] = int(cursor.fetchone()[0])
    return found


def per_run(found: dict[str, int], runs: int) -> dict[str, Any]:
    steps = (found["trajectories_step"] + found["trajectories_steptotal"]) / runs
    rest = sum(found.values()) / runs - steps
    return {
        "bytes_without_steps": round(rest),
        "bytes_of_steps": round(steps),
        "ratio": round((rest + steps) / rest, 2),
    }


def disk_of_arrivals(project: Any, runs: int, folder: Path, reply_length: int) -> dict[str, Any]:
    """What steps add to a run that arrives, with indexes that grow row by row; the processor time
    of its digest, PostgreSQL's included.
    """
    from django.db import connection

    from apps.trajectories import digest, step_store
    from apps.trajectories.actions.store import ingest
    from apps.trajectories.steps import Reader as Steps

    text, before, parent = Text(1), sizes(), postmaster(folder)

    def spent() -> float:
        return time.process_time() * 1000 + cpu_ms(parent)

    costs: dict[str, list[float]] = {"with": [], "without": []}
    for part, first in enumerate(range(0, runs, 500)):
        now = datetime.now(UTC) - timedelta(minutes=5)
        rows = [
            templates(n, VERSIONS[n // OF_VERSION % 12], now, text, Shape(reply=reply_length))
            for n in range(first, first + 500)
        ]
        named = [row | {"id": f"size-{reply_length}-{row['id']}"} for row in rows]
        ingest(project=project, rows=named)
        started = spent()
        if part % 2:
            with (
                patch.object(Steps, "read"),
                patch.object(Steps, "steps", lambda self: []),
                patch.object(step_store, "delete"),
            ):
                digest.run()
        else:
            digest.run()
        costs["without" if part % 2 else "with"].append((spent() - started) / 500)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")  # what GIN has yet to sort in takes more room
    grown = {table: size - before[table] for table, size in sizes().items()}
    grown["trajectories_step"] *= 2  # every second part has them
    return per_run(grown, runs) | {
        "digest_cpu_ms_per_run": {
            name: round(float(np.median(found)), 2) for name, found in costs.items()
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=HOME / "steps")
    parser.add_argument("--port", type=int, default=8877)
    parser.add_argument("--size", type=int, default=3000)
    parser.add_argument("--parts", default="sizes,disk,warm,cold,export,follow")
    parser.add_argument("--only", default="", help="questions whose name matches")
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    os.environ |= {
        "FLYWHEEL_DATA_DIR": str(chosen.folder),
        "DJANGO_SETTINGS_MODULE": "flywheel.settings",
    }
    from flywheel import embedded

    embedded.ensure()
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    report = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    measure(chosen, report)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=1))


def measure(chosen: argparse.Namespace, report: dict[str, Any]) -> None:
    from django.contrib.auth import get_user_model
    from django.test import Client

    from apps.core.actions import create_api_key, create_project
    from apps.core.models import Project

    admin, _ = get_user_model().objects.get_or_create(
        username="bench", defaults={"is_superuser": True}
    )
    projects = {
        name: Project.objects.filter(slug=name).first()
        or create_project(slug=name, name=name, by=admin)
        for name in ("templates", "million", "size")
    }
    project, parts = projects["million"], chosen.parts.split(",")
    if chosen.runs:
        load(project, projects["templates"], chosen.runs, chosen.folder)
    if "sizes" in parts:
        report["disk of all"] = sizes()
        report["disk of a run"] = per_run(report["disk of all"], chosen.runs)
        print(report["disk of a run"], flush=True)
    if "disk" in parts:
        report["disk of arrivals"] = {
            f"replies of {length} characters": disk_of_arrivals(
                projects["size"], chosen.size, chosen.folder, length
            )
            for length in (150, 500, 1500)
        }
        print(report["disk of arrivals"], flush=True)
    if not {"warm", "cold", "export", "follow"}.intersection(parts):
        return
    _, key = create_api_key(project=project, name="bench", by=admin)
    client = Client()
    client.force_login(admin)
    server = Flywheel("postgresql", chosen.folder, keep=True, port=chosen.port)
    try:
        server.start()
        server.key = key
        reader = Reader(server, client.cookies["sessionid"].value)
        report["machine"] = machine()
        ask_all(chosen, reader, project.slug, parts, report)
    finally:
        server.stop()


def ask_all(
    chosen: argparse.Namespace, reader: Reader, slug: str, parts: list[str], report: dict[str, Any]
) -> None:
    if "export" in parts:
        for name, path in (
            ("1 as a file", f"steps/export/?{SEARCH}&agent_version=7&format=csv"),
            ("3 as a file", "steps/export/?arguments=case123456"),
            ("scores as a file", "scores/export/?name=rating&since=7d&format=csv"),
        ):
            report.setdefault("files", {})[name] = {
                door: exported(reader, f"{base}/{path}")
                for door, base in (("page", f"/p/{slug}/trajectories"), ("API", "/api/v1"))
            }
            print(name, report["files"][name], flush=True)
    if "follow" in parts:
        report["follow"] = follow(reader, slug)
        print(report["follow"], flush=True)
    asked = report.setdefault("questions", {})
    for name, door, urls in addresses(slug, chosen.runs):
        if not re.search(chosen.only, name):
            continue
        found = asked.setdefault(name, {}).setdefault(door, {})
        if "cold" in parts:
            found["cold_ms"] = cold(reader, chosen.folder, urls)
        if "warm" in parts:
            found |= warm(reader, chosen.folder, urls)
        missed = "  MISSED" if found.get("p95_ms", 0) >= GOAL_MS else ""
        print(f"{name} · {door}: {found}{missed}", flush=True)


if __name__ == "__main__":
    main()
