"""Many runs on one machine, and the plans of many more.

`python -m bench.sizes [--runs 10000000] [--folder F] [--parts load,digest,read]` loads runs of
three steps in the forms in which the product stores them (`bench.many_runs`; what is there is
kept), digests some more that arrive by its door, and calls the main pages in this process. Counted
are the processor time of the page and of PostgreSQL, and the pages of the database that its
statements touch: other work on the machine changes neither.

`python -m bench.sizes --plans [--trajectories 100000000] [--months 24]` shows what PostgreSQL would
do with so many: in a copy of a small database the files are lengthened by holes, the statistics
scaled to their size, and the statements of the same pages explained. One passes that reads large
tables by an index or stops after some rows, costs less than MOST, and reads not more months than
the page asks for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.bodies import RARE, Text
from bench.ingest_cpu import database_s
from bench.many_runs import DAYS, SMALL, TOOLS, VERSIONS, load, templates
from bench.peers import HOME, stop_servers_on_sigterm
from flywheel.embedded import Layout

OUTPUT = HOME / "sizes.json"
SAMPLE = 20_000  # runs of which the statistics of many are made
LARGE = 1_000  # pages of a table that no statement may read from end to end
MOST = 50_000  # of the planner's units: some 0.3 s where what it reads is in memory
COPY = "flywheel_plans"
SEGMENT = 2**30  # bytes of one file of a table
PAGE = 8192
DIGESTED = 2_000
RELATIONS = """
    SELECT rel.oid, rel.relname, rel.relkind, rel.relpages, rel.reltuples,
        coalesce(pg_relation_filepath(rel.oid), ''), coalesce(tab.relname, rel.relname)
    FROM pg_class AS rel
    LEFT JOIN pg_index AS ind ON ind.indexrelid = rel.oid
    LEFT JOIN pg_class AS tab ON tab.oid = ind.indrelid
    WHERE rel.relnamespace = 'public'::regnamespace AND rel.relkind IN ('r', 'p', 'i', 'I')
"""
TIMES = {"trajectories_hourlycount": "hour", "trajectories_metriccell": "at"}
STATISTICS = (
    "null_frac",
    "avg_width",
    "n_distinct",
    "most_common_vals",
    "most_common_freqs",
    "histogram_bounds",
    "correlation",
    "most_common_elems",
    "most_common_elem_freqs",
    "elem_count_histogram",
)
KEYS = "trajectories_trajectorykey"
# With runs all day, each hour has what a whole day of the sample has.
ROLL_UPS = {
    "trajectories_hourlycount": "SELECT count(DISTINCT (date_trunc('day', hour), agent_name,"
    " agent_version, model, workload, outcome_status)) * 24 FROM trajectories_hourlycount",
    "trajectories_metriccell": "SELECT count(*) * 25 FROM trajectories_metriccell WHERE unit ="
    " 'day'",
}
MONTHLY = re.compile(r"(trajectories_\w+?)_(\d{4}_\d{2}|older)")


@contextmanager
def installation(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    os.environ |= {
        "FLYWHEEL_DATA_DIR": str(folder),
        "DJANGO_SETTINGS_MODULE": "flywheel.settings",
    }
    from flywheel import embedded

    embedded.ensure()
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    from apps.trajectories import partitions

    call_command("migrate", verbosity=0)
    partitions.ensure_ahead()
    settings.ALLOWED_HOSTS = ["*"]
    settings.STORAGES["staticfiles"] = {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
    }
    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")
    yield


def projects() -> dict[str, Any]:
    from django.contrib.auth import get_user_model

    from apps.core.actions import create_project
    from apps.core.models import Project

    admin, _ = get_user_model().objects.get_or_create(
        username="bench", defaults={"is_superuser": True, "is_staff": True}
    )
    return {
        name: Project.objects.filter(slug=name).first()
        or create_project(slug=name, name=name, by=admin)
        for name in ("templates", "sizes")
    }


def pages(project: Any) -> dict[str, tuple[str, int | None]]:
    """By what it is: an address, and how many months it asks for; None for all of them."""
    from django.urls import reverse

    from apps.trajectories.models import Trajectory

    slug, words = [project.slug], Text(1).words
    runs, steps = reverse("trajectories:list", args=slug), reverse("trajectories:steps", args=slug)
    newest = Trajectory.objects.filter(project=project).order_by("-pk").first()
    assert newest is not None
    explore = reverse("dashboard:explore", args=slug)
    found: dict[str, tuple[str, int | None]] = {
        "list, 24 hours": (f"{runs}?since=24h", 2),
        "list, 30 days": (f"{runs}?since=30d", 2),
        "list, 30 days, failed": (f"{runs}?since=30d&outcome=failure", 2),
        "list, 30 days, a version": (f"{runs}?since=30d&agent_version={VERSIONS[-1]}", 2),
        "list, 30 days, a tool": (f"{runs}?since=30d&tool={TOOLS[3]}", 2),
        "list, all": (runs, None),
        "list, all, a tag and failed": (f"{runs}?tag=vip&outcome=failure", None),
        "search, 30 days, a rare word": (f"{runs}?since=30d&q={RARE}", 2),
        "search, 30 days, a common word": (f"{runs}?since=30d&q={words[0]}", 2),
        "search, all, a rare word": (f"{runs}?q={RARE}", None),
        "count, 30 days": (reverse("trajectories:count", args=slug) + "?since=30d", 2),
        "totals, 30 days": (reverse("trajectories:sums", args=slug) + "?since=30d", 2),
        "trend, 30 days": (reverse("trajectories:trend", args=slug) + "?since=30d", 2),
        "overview": (reverse("dashboard:home", args=slug), 2),
        "overview, failure rate": (
            reverse("dashboard:failure_rate", args=slug) + "?since=30d",
            2,
        ),
        "overview, performance": (reverse("dashboard:performance", args=slug) + "?since=30d", 2),
        "chart, cost by model": (f"{explore}?measure=cost&by=model&since=30d", 2),
        "run": (reverse("trajectories:detail", args=[*slug, newest.pk]), 1),
        "run by its id": (f"{reverse('dashboard:search', args=slug)}?q={newest.external_id}", None),
        "steps, 30 days": (f"{steps}?since=30d", 2),
        "steps, 30 days, a tool's failed": (
            f"{steps}?since=30d&kind=tool&name={TOOLS[3]}&status=error",
            2,
        ),
        "steps, chart": (
            reverse("trajectories:steps_chart", args=slug) + "?since=30d&kind=tool",
            2,
        ),
    }
    return found


class Statements:
    """What a block sends to the database."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def __call__(self, execute: Any, sql: Any, values: Any, many: bool, context: Any) -> Any:
        if isinstance(sql, str) and sql.lstrip(" (").upper().startswith(("SELECT", "WITH")):
            self.sent.append((sql, values))
        return execute(sql, values, many, context)


def explained(sql: str, values: Any, how: str = "") -> dict[str, Any]:
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN ({how}FORMAT JSON) {sql}", values)
        found = cursor.fetchone()[0]
        return (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def keys(project: Any) -> list[tuple[str, Any]]:
    """What a door asks the table of keys, of 1,000 ids."""
    from apps.trajectories.models import TrajectoryKey

    rows = TrajectoryKey.objects.filter(
        project=project, external_id__in=[f"run-{n:09d}" for n in range(0, 5000, 5)]
    )
    return [rows.values_list("external_id", "trajectory_id").query.sql_with_params()]


# Reading and digesting


def read(project: Any) -> dict[str, Any]:
    """By page: CPU ms, buffers and wall ms, warm."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.get(username="bench"))
    found = {}
    for name, (url, _) in pages(project).items():
        sent = Statements()
        client.get(url)
        ours, theirs, wall = time.process_time(), database_s(), time.perf_counter()
        with connection.execute_wrapper(sent):
            status = client.get(url).status_code
        found[name] = {
            "page_cpu_ms": round((time.process_time() - ours) * 1000, 1),
            "database_cpu_ms": round((database_s() - theirs) * 1000, 1),
            "wall_ms": round((time.perf_counter() - wall) * 1000),
            "buffers": sum(buffers(*one) for one in sent.sent),
            "statements": len(sent.sent),
            "status": status,
        }
        print(f"{name}: {found[name]}", flush=True)
    asked = keys(project)
    found["1,000 keys"] = {"buffers": sum(buffers(*one) for one in asked)}
    print(f"1,000 keys: {found['1,000 keys']}", flush=True)
    return found


def buffers(sql: str, values: Any) -> int:
    plan = explained(sql, values, "ANALYZE, BUFFERS, TIMING OFF, ")
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def digested(project: Any) -> dict[str, float]:
    """CPU µs of a run that arrives now, received and digested."""
    from apps.trajectories import digest
    from apps.trajectories.actions.store import ingest

    text, now = Text(2), datetime.now(UTC)
    rows = [
        templates(n, VERSIONS[-1], now - timedelta(seconds=n), text, SMALL)
        | {"id": f"arrived-{now.timestamp()}-{n}"}
        for n in range(DIGESTED)
    ]
    found = {}
    for name, work in (
        ("received", lambda: ingest(project=project, rows=rows)),
        ("digested", digest.run),
    ):
        ours, theirs = time.process_time(), database_s()
        work()
        found[f"{name}_us"] = round((time.process_time() - ours) / DIGESTED * 1e6)
        found[f"{name}_database_us"] = round((database_s() - theirs) / DIGESTED * 1e6)
    print(found, flush=True)
    return found


# Plans of many more


def plans(project: Any, trajectories: int, months: int, folder: Path) -> bool:
    """Whether the statements of all pages pass."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.get(username="bench"))
    asked: dict[str, tuple[list[tuple[str, Any]], int | None]] = {}
    for name, (url, may_read) in pages(project).items():
        sent = Statements()
        with connection.execute_wrapper(sent):
            status = client.get(url).status_code
        if status != 200:
            raise SystemExit(f"{name}: {status}")
        asked[name] = sent.sent, may_read
    asked["1,000 keys"] = keys(project), None
    with copied():
        return _explain_all(asked, pretend(trajectories, months, folder))


@contextmanager
def copied() -> Iterator[None]:
    """The connection is to a copy of the database, which is dropped afterwards."""
    from django.db import connection

    database = connection.settings_dict["NAME"]

    def to(name: str, *statements: str) -> None:
        connection.close()
        connection.settings_dict["NAME"] = name
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    drop = f"DROP DATABASE IF EXISTS {COPY} WITH (FORCE)"
    to("postgres", drop, f"CREATE DATABASE {COPY} TEMPLATE {database} STRATEGY file_copy")
    to(COPY)
    try:
        yield
    finally:
        to("postgres", drop, "ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()")
        to(database)


def _explain_all(
    asked: dict[str, tuple[list[tuple[str, Any]], int | None]], sizes: dict[str, int]
) -> bool:
    print(
        "| page | statements | months read | cost of the dearest | passes |\n|---|---|---|---|---|"
    )
    is_fine = True
    for name, (sent, may_read) in asked.items():
        found = [explained(*one) for one in sent]
        wrong = []
        for plan, (sql, _) in zip(found, sent, strict=True):
            if one := list(problems(plan, may_read, sizes)):
                wrong += one
                print(f"    {one}: {sql[:1500]}", flush=True)
        read_months = max((len(months_of(plan) & sizes.keys()) for plan in found), default=0)
        dearest = max(map(cost, found), default=0)
        verdict = "yes" if not wrong else "**no**: " + "; ".join(dict.fromkeys(wrong))
        print(f"| {name} | {len(sent)} | {read_months} | {dearest:,.0f} | {verdict} |", flush=True)
        is_fine &= not wrong
    return is_fine


def months_of(plan: dict[str, Any]) -> set[str]:
    tables = (node.get("Relation Name", "") for node in nodes(plan))
    return {match[2] for table in tables if (match := MONTHLY.fullmatch(table))}


def problems(plan: dict[str, Any], may_read: int | None, sizes: dict[str, int]) -> Iterator[str]:
    ended = list(read_to_the_end(plan))
    months = {month for node in ended for month in months_of(node)} & sizes.keys()
    if may_read is not None and len(months) > may_read:
        yield f"{len(months)} months"
    if cost(plan) > MOST:
        yield f"costs {cost(plan):,.0f}"
    for node in ended:
        if node["Node Type"] == "Seq Scan" and sizes.get(node["Relation Name"], 0) > LARGE:
            yield f"reads all of {node['Relation Name']}"


def cost(plan: dict[str, Any]) -> float:
    """Of a statement that reads the first rows of a CTE, which is made as far as it is read, the
    planner counts all of it.
    """
    total = plan["Total Cost"]
    for node in nodes(plan):
        if plan["Node Type"] == "Limit" and node.get("Subplan Name", "").startswith("CTE"):
            share = min(1.0, plan["Plan Rows"] / max(1, node["Plan Rows"]))
            total -= (node["Total Cost"] - node["Startup Cost"]) * (1 - share)
    return total


def read_to_the_end(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The scans that do not stop when there are enough rows: what is below a Limit does, unless it
    is sorted first; and what is looked up for each row of another does.
    """
    children = plan.get("Plans", ())
    if not children:
        yield plan
    stops = plan["Node Type"] == "Limit" and "Sort" not in [c["Node Type"] for c in children]
    for child in () if stops else children:
        if plan["Node Type"] != "Nested Loop" or child["Parent Relationship"] != "Inner":
            yield from read_to_the_end(child)


def pretend(trajectories: int, months: int, folder: Path) -> dict[str, int]:
    """Statistics and lengths of files as if there were so many trajectories, in so many months
    until now. Returns the pages of each relation, and of each month.
    """
    from django.db import connection, transaction

    from apps.trajectories import ids, partitions

    now = datetime.now(UTC)
    every = [ids.month_of(now)]
    while len(every) < months:
        every.append(ids.month_of(every[-1] - timedelta(days=1)))
    with transaction.atomic():
        partitions.ensure(set(every))
    with connection.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET autovacuum = off")
        cursor.execute("SELECT pg_reload_conf()")
        cursor.execute("ANALYZE")
        cursor.execute(RELATIONS)
        relations = cursor.fetchall()
        full = _fullest(relations)
        model = {row[1]: row for row in relations}
        sample = next(row[4] for row in relations if row[1] == f"trajectories_trajectory_{full}")
        named = {partitions.suffix(month) for month in every}
        data = Layout.of(folder.resolve()).postgres
        by_month = trajectories / months / sample
        of_all = dict.fromkeys([KEYS, *partitions.TABLES], trajectories / SAMPLE)
        for table, sql in ROLL_UPS.items():
            cursor.execute(sql)
            of_all[table] = cursor.fetchone()[0] / model[table][4] * months * 30.4 / DAYS
        sizes: dict[str, int] = {}
        for _, name, kind, size, tuples, path, table in relations:
            match = MONTHLY.fullmatch(table)
            if match and match[2] in named:
                like = model[_like(name, table, full, relations)]
                size, tuples = int(like[3] * by_month), like[4] * by_month
                if kind == "r":
                    _copy_statistics(cursor, f"{match[1]}_{full}", name, match[2])
                sizes[match[2]] = sizes.get(match[2], 0) + size
            elif table in of_all:
                size, tuples = int(size * of_all[table]), tuples * of_all[table]
                if name in TIMES:
                    begin = now - timedelta(days=30.4 * months)
                    bounds = [str(begin + (now - begin) * n / 100) for n in range(101)]
                    _restore(
                        cursor,
                        name,
                        TIMES[name],
                        {
                            "null_frac": 0,
                            "avg_width": 8,
                            "n_distinct": 730 * months,
                            "histogram_bounds": bounds,
                        },
                    )
            else:
                continue
            cursor.execute(
                "SELECT pg_restore_relation_stats('schemaname', 'public', 'relname', %s,"
                " 'relpages', %s::int, 'reltuples', %s::real)",
                [name, size, tuples],
            )
            sizes[name] = size
            if path:
                _lengthen(data / path, size * PAGE)
    return sizes


def _fullest(relations: list[Any]) -> str:
    """The month of the sample with the most rows."""
    rows = [(row[4], match[2]) for row in relations if (match := MONTHLY.fullmatch(row[1]))]
    return max(row for row in rows if row[1] != "older")[1]


def _like(name: str, table: str, full: str, relations: list[Any]) -> str:
    """The relation of the sample's month that corresponds to another month's: its table, or its
    index at the same place, since all are made in one order.
    """
    month = MONTHLY.fullmatch(table)[2]
    if name == table:
        return name.replace(month, full)
    own = sorted((row[0], row[1]) for row in relations if row[6] == table and row[2] == "i")
    place = [known for _, known in own].index(name)
    there = table.replace(month, full)
    return sorted((row[0], row[1]) for row in relations if row[6] == there and row[2] == "i")[
        place
    ][1]


def _copy_statistics(cursor: Any, source: str, name: str, month: str) -> None:
    """Of each column; where it is an id, its bounds are those of the month."""
    from apps.trajectories.ids import floor_of, next_month

    begin = datetime.strptime(month, "%Y_%m").replace(tzinfo=UTC)
    length = next_month(begin) - begin
    columns = ", ".join(f"{column}::text" for column in STATISTICS)
    cursor.execute(
        f"SELECT attname, {columns} FROM pg_stats WHERE schemaname = 'public' AND tablename = %s",
        [source],
    )
    for column, *values in cursor.fetchall():
        given = dict(zip(STATISTICS, values, strict=True))
        if column in ("id", "trajectory_id") and given["histogram_bounds"]:
            bounds = [floor_of(begin + length * n / 100) for n in range(101)]
            given |= {"histogram_bounds": bounds}
            given |= {"most_common_vals": None, "most_common_freqs": None}
        known = {key: value for key, value in given.items() if value is not None}
        _restore(cursor, name, column, known)


def _restore(cursor: Any, table: str, column: str, known: dict[str, Any]) -> None:
    values = [
        "{" + ",".join(f'"{one}"' for one in value) + "}" if isinstance(value, list) else value
        for value in known.values()
    ]
    pairs = "".join(f", '{key}', %s{_cast(key)}" for key in known)
    cursor.execute("SELECT pg_clear_attribute_stats('public', %s, %s, false)", [table, column])
    cursor.execute(
        "SELECT pg_restore_attribute_stats('schemaname', 'public', 'relname', %s, 'attname',"
        f" %s, 'inherited', false{pairs})",
        [table, column, *values],
    )


def _cast(name: str) -> str:
    numbers = {"null_frac": "real", "avg_width": "int", "n_distinct": "real", "correlation": "real"}
    lists = ("most_common_freqs", "most_common_elem_freqs", "elem_count_histogram")
    return "::" + (numbers.get(name) or ("real[]" if name in lists else "text"))


def _lengthen(path: Path, size: int) -> None:
    """By holes, which take no room: the planner goes by the length of the files."""
    for number in range(size // SEGMENT + 1):
        part = path if number == 0 else path.with_name(f"{path.name}.{number}")
        length = min(SEGMENT, size - number * SEGMENT)
        if not part.exists():
            part.touch()
            os.chown(part, path.stat().st_uid, path.stat().st_gid)
            part.chmod(0o600)
        if part.stat().st_size < length:
            os.truncate(part, length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=HOME / "sizes")
    parser.add_argument("--parts", default="load,digest,read")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--trajectories", type=int, default=100_000_000)
    parser.add_argument("--months", type=int, default=24)
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    folder = chosen.folder / "plans" if chosen.plans else chosen.folder
    with installation(folder):
        known = projects()
        if chosen.plans:
            load(known["sizes"], known["templates"], SAMPLE, folder, SMALL)
            if not plans(known["sizes"], chosen.trajectories, chosen.months, folder):
                raise SystemExit(1)
            return
        parts, report = chosen.parts.split(","), {"load_average": os.getloadavg()}
        if "load" in parts:
            report["load_s"] = load(known["sizes"], known["templates"], chosen.runs, folder, SMALL)
        report["runs"] = known["sizes"].trajectories.count()
        if "digest" in parts:
            report["digest"] = digested(known["sizes"])
        if "read" in parts:
            report["read"] = read(known["sizes"])
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
