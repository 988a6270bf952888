"""Questions about steps, as their number grows, and what steps cost. `python -m bench.steps
[--steps 1000000,10000000] [--runs 3000]`

In an embedded PostgreSQL of its own (var/bench/steps; `--fresh` begins anew). The steps of 30 days
are made in SQL, eight a run, with their runs and words; pages and API are asked in this process.
`--runs` of bench.bodies go through `store.ingest` and `digest`: the disk that steps take beside
all else of a run, and the time of the digest. Writes var/bench/steps.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.bodies import TOOLS, VERSIONS, Text, row
from bench.peers import HOME, machine

FOLDER, OUTPUT = HOME / "steps", HOME / "steps.json"
PER_RUN, DAYS, AT_ONCE = 8, 30, 200_000
REQUESTS, WARM_UP, BUDGET_S = 40, 3, 20.0
GOAL_MS = 300
# Of the number n of a run: its id, in the order of its start, and when that is.
RUN = "lpad(to_hex(%(first)s + (n * %(step)s)::bigint), 12, '0')"
RUN_ID = f"(substr({RUN}, 1, 8) || '-' || substr({RUN}, 9, 4) || '-7' || lpad(to_hex(n %% 4096), 3,"
RUN_ID += " '0') || '-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
SQL = {
    "trajectories_trajectory": f"""
        INSERT INTO trajectories_trajectory (id, project_id, external_id, content_digest,
            agent_name, agent_version, model, workload, session_id, user_id, started_at,
            received_at, outcome_status, outcome_label, outcome_reason, message_count, tags,
            tool_names, terms, preview)
        SELECT {RUN_ID}, %(project)s, 'run-' || n, '', 'helpdesk', '', 'gpt-5-mini', '', '', '',
            to_timestamp((%(first)s + n * %(step)s) / 1000), now(), 'unknown', '', '', 9, '{{}}',
            '{{}}', '{{}}', 'Case ' || n
        FROM generate_series(%(begin)s, %(end)s - 1) AS n""",
    "trajectories_trajectorykey": f"""
        INSERT INTO trajectories_trajectorykey (project_id, external_id, trajectory_id, digest)
        SELECT %(project)s, 'run-' || n, {RUN_ID}, ''
        FROM generate_series(%(begin)s, %(end)s - 1) AS n""",
    "trajectories_searchtext": f"""
        INSERT INTO trajectories_searchtext (trajectory_id, words)
        SELECT {RUN_ID}, to_tsvector('simple', 'case order-' || n || ' priority p' || n %% 5)
        FROM generate_series(%(begin)s, %(end)s - 1) AS n""",
    # Every second step is a tool's; 3% of those fail, most of them of one tool in one version; 2%
    # take more than two seconds.
    "trajectories_step": f"""
        INSERT INTO trajectories_step (project_id, trajectory_id, number, key, kind, name, status,
            model, agent_name, agent_version, arguments, error, started_at, duration_ms,
            input_tokens, output_tokens, total_tokens, cost_usd, message_index)
        SELECT %(project)s, {RUN_ID}, s, to_hex(n * 8 + s), CASE WHEN is_tool THEN 'tool' ELSE
            'model' END, CASE WHEN is_tool THEN tool ELSE 'chat gpt-5-mini' END, CASE WHEN fails
            THEN 'error' ELSE 'ok' END, CASE WHEN is_tool THEN '' ELSE 'gpt-5-mini' END, 'helpdesk',
            version, CASE WHEN is_tool THEN '{{"query": "case order-' || n || ' priority p' ||
            n %% 5 || '"}}' ELSE '' END, CASE WHEN fails THEN 'Error: order-' || n || ' declined by'
            ' upstream' ELSE '' END, to_timestamp((%(first)s + n * %(step)s) / 1000), 20 *
            exp(4 * (random() + random() + random() + random() - 2)), CASE WHEN NOT is_tool
            THEN (400 + 900 * random())::int END, CASE WHEN NOT is_tool THEN 45 END, CASE WHEN NOT
            is_tool THEN (445 + 900 * random())::int END, CASE WHEN NOT is_tool THEN random() / 200
            END, s + 1
        FROM (SELECT *, is_tool AND random() < CASE WHEN tool = (%(tools)s::text[])[1] AND
            version = (%(versions)s::text[])[7] THEN 0.3 ELSE 0.02 END AS fails
            FROM (SELECT n, s, s %% 2 = 1 AS is_tool,
                (%(tools)s::text[])[1 + ((n * 7 + s) * 2654435761 %% 1000003 %% 20)] AS tool,
                (%(versions)s::text[])[1 + n %% 12] AS version
                FROM generate_series(%(begin)s, %(end)s - 1) AS n, generate_series(0, 7) AS s
            ) AS drawn) AS made""",
}


def load(project: int, runs: int) -> float:
    """Runs with their steps, in place of those that are there. Seconds."""
    from django.db import connection, transaction

    from apps.trajectories import ids, partitions

    first_at = datetime.now(UTC) - timedelta(days=DAYS)
    first = int(first_at.timestamp() * 1000)
    with transaction.atomic(), connection.cursor() as cursor:
        partitions.ensure({ids.month_of(first_at)})
        cursor.execute(f"TRUNCATE {', '.join(SQL)} CASCADE")
    started = time.perf_counter()
    for begin in range(0, runs, AT_ONCE // PER_RUN):
        given = {
            "project": project,
            "first": first,
            "step": DAYS * 86_400_000 / runs,
            "begin": begin,
            "end": min(runs, begin + AT_ONCE // PER_RUN),
            "tools": list(TOOLS),
            "versions": list(VERSIONS),
        }
        with connection.cursor() as cursor:
            for sql in SQL.values():
                cursor.execute(sql, given)
        print(f"  {begin * PER_RUN:,} steps, {time.perf_counter() - started:,.0f} s", flush=True)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    return time.perf_counter() - started


def questions(runs: int) -> Iterator[tuple[str, list[str]]]:
    """What is asked: a name, and queries that differ in a value."""
    search, others = TOOLS[0], TOOLS[1:5]
    yield "newest", [""]
    yield "failed tool calls", ["?kind=tool&status=error"]
    yield (
        "a tool's failures or slow calls in a version",
        [
            f"?name={search}&{narrow}&agent_version={version}"
            for version in VERSIONS[4:8]
            for narrow in ("status=error", "duration_min=2")
        ],
    )
    yield "a tool's calls over 2 s", [f"?name={name}&duration_min=2" for name in others]
    yield "tool calls over 60 s (none)", ["?kind=tool&duration_min=60"]
    yield "slow tools, slowest first", ["?kind=tool&duration_min=2&sort=-duration"]
    yield "model calls, dearest first, 24 h", ["?kind=model&since=24h&sort=-cost"]
    yield (
        "arguments contain a rare word",
        [f"?arguments=order-{runs * n // 9}" for n in range(1, 9)],
    )
    yield "arguments contain a common word", ["?arguments=priority", "?arguments=p3&kind=tool"]
    yield (
        "error contains",
        [f"?error=order-{runs // 2 + n}" for n in range(8)] + ["?error=declined"],
    )
    yield "a name that nothing has", ["?name=nothing&status=error"]
    yield "a run's steps", [f"?run=run-{runs * n // 9}" for n in range(1, 9)]
    yield "p95 of each tool by version", ["metrics/?kind=tool&split=agent_version"]
    yield "p95 of each tool, 24 h", ["metrics/?kind=tool&since=24h"]
    yield "error rate by version, one tool", [f"metrics/?name={n}&by=agent_version" for n in others]


def measured(client: Any, urls: list[str]) -> dict[str, Any]:
    """The URLs in turn, until there are REQUESTS of them or the budget is spent (at least five)."""

    def ask(url: str) -> tuple[float, int, int]:
        at = time.perf_counter()
        answer = client.get(f"/api/v1/steps/{url}")
        rows = answer.json().get("results", answer.json().get("groups", []))
        return (time.perf_counter() - at) * 1000, answer.status_code, len(rows)

    for url in urls[:WARM_UP]:
        ask(url)
    seen, started = [], time.perf_counter()
    while len(seen) < REQUESTS and (len(seen) < 5 or time.perf_counter() - started < BUDGET_S):
        seen.append(ask(urls[len(seen) % len(urls)]))
    p50, p95 = np.percentile([ms for ms, _, _ in seen], [50, 95]).tolist()
    return {
        "p50_ms": round(p50, 1),
        "p95_ms": round(p95, 1),
        "n": len(seen),
        "rows": max(rows for _, _, rows in seen),
        "not_200": [status for _, status, _ in seen if status != 200][:3],
    }


def sizes() -> dict[str, int]:
    """Bytes on disk of each partitioned table."""
    from django.db import connection

    from apps.trajectories.partitions import TABLES

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        found = {}
        for table in TABLES:
            cursor.execute(
                "SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits WHERE"
                " inhparent = %s::regclass",
                [table],
            )
            found[table] = int(cursor.fetchone()[0])
    return found


def cost_of(project: Any, runs: int) -> dict[str, Any]:
    """What steps add to the disk of a run and to the time of the digest."""
    from apps.trajectories import digest, step_store
    from apps.trajectories.actions.store import ingest
    from apps.trajectories.steps import Reader

    text = Text(1)
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    before = sizes()
    for part, first in enumerate(range(0, runs, 500)):
        now = datetime.now(UTC)
        ingest(
            project=project,
            rows=[row(f"size-{n}", n, now, 4000, text) for n in range(first, first + 500)],
        )
        started = time.perf_counter()
        if part % 2:
            with (
                patch.object(Reader, "read"),
                patch.object(Reader, "steps", lambda self: []),
                patch.object(step_store, "delete"),
            ):
                digest.run()
        else:
            digest.run()
        seconds["without" if part % 2 else "with"].append(time.perf_counter() - started)
    grown = {table: size - before[table] for table, size in sizes().items()}
    steps = grown.pop("trajectories_step") * 2 / runs  # every second part has them
    rest = sum(grown.values()) / runs
    return {
        "bytes_per_run_without_steps": round(rest),
        "bytes_of_steps_per_run": round(steps),
        "ratio": round((rest + steps) / rest, 2),
        "digest_ms_per_run": {
            name: round(float(np.median(found)) * 2, 3) for name, found in seconds.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default="1000000", help="sizes, by commas")
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run loaded")
    chosen = parser.parse_args()
    if chosen.fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    os.environ |= {
        "FLYWHEEL_DATA_DIR": str(FOLDER),
        "DJANGO_SETTINGS_MODULE": "flywheel.settings",
        "ALLOWED_HOSTS": "*",
    }
    from flywheel import embedded

    embedded.ensure()
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    report = ask_all(chosen)
    OUTPUT.write_text(json.dumps(report, indent=1))


def ask_all(chosen: argparse.Namespace) -> dict[str, Any]:
    from django.contrib.auth import get_user_model
    from django.test import Client

    from apps.core.actions import create_api_key, create_project
    from apps.core.models import Project

    admin, _ = get_user_model().objects.get_or_create(username="bench")
    projects = {
        name: Project.objects.filter(slug=name).first()
        or create_project(slug=name, name=name, by=admin)
        for name in ("steps", "size")
    }
    report: dict[str, Any] = {"machine": machine()}
    if chosen.runs:
        report["cost"] = cost_of(projects["size"], chosen.runs)
        print(report["cost"], flush=True)
    _, key = create_api_key(project=projects["steps"], name="bench", by=admin)
    client = Client(headers={"Authorization": f"Bearer {key}"})
    for steps in map(int, filter(None, chosen.steps.split(","))):
        runs = steps // PER_RUN
        report[str(steps)] = {"loaded_s": round(load(projects["steps"].pk, runs))}
        for name, urls in questions(runs):
            found = report[str(steps)][name] = measured(client, urls)
            verdict = "" if found["p95_ms"] < GOAL_MS else "  MISSED"
            print(f"{steps:>11,} {name}: {found}{verdict}", flush=True)
    return report


if __name__ == "__main__":
    main()
