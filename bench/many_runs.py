"""Millions of runs with their steps and scores, in minutes.

Some thousand runs go through `store.ingest` and `digest`; the others are copies of those rows, made
by PostgreSQL, with times, ids, words and figures of their own. Rows come in the order of time, and
the indexes that are not in that order are built at the end: those grown row by row are larger.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bench.bodies import MODELS, RARE, RARE_EVERY, WORKLOADS, Text, tool_schema

DAYS, AT_ONCE = 60, 10_000
VERSIONS = tuple(str(number) for number in range(1, 13))  # one after the other, with overlap
TOOLS = (
    "search",
    *(
        f"{verb}_{thing}"
        for verb in ("get", "create", "update", "cancel")
        for thing in ("order", "ticket", "invoice", "customer", "booking")
    ),
)
OF_VERSION = 200  # runs that go through the product
BAD = ("search", "7")  # a third of these calls fails


@dataclass(frozen=True)
class Shape:
    """What a run looks like: so many model calls with a tool's call between two of them, and the
    characters of its messages.
    """

    calls: int = 5
    request: int = 160
    query: int = 50
    reply: int = 150
    answer: int = 240
    tools: int = 4  # whose schemas the run has
    has_agent: bool = True  # a step around the others
    has_scores: bool = True

    @property
    def steps(self) -> int:
        return 2 * self.calls - 1 + self.has_agent


USUAL = Shape()  # ten steps
SMALL = Shape(2, 120, 20, 80, 120, tools=0, has_agent=False, has_scores=False)  # three
TABLES = (
    "trajectories_trajectory",
    "trajectories_trajectorykey",
    "trajectories_content",
    "trajectories_searchtext",
    "trajectories_step",
)
# `made` has of each new run: n, id, at, template (an id), shift (how much later it is).
OWN = {
    "trajectories_trajectory": {
        "id": "made.id",
        "project_id": "%(project)s",
        "external_id": "made.name",
        "started_at": "old.started_at + made.shift",
        "ended_at": "old.ended_at + made.shift",
        "received_at": "old.ended_at + made.shift",
        "session_id": "made.session",
        "user_id": "made.person",
        "cost_usd": "old.cost_usd * (0.8 + 0.4 * random())",
        "latency_ms": "old.latency_ms * (0.8 + 0.4 * random())",
        "terms": "array_replace(array_replace(old.terms, 'session:' || old.session_id, 'session:'"
        " || made.session), 'user:' || old.user_id, 'user:' || made.person)",
    },
    "trajectories_trajectorykey": {
        "project_id": "%(project)s",
        "external_id": "made.name",
        "trajectory_id": "made.id",
    },
    "trajectories_content": {"trajectory_id": "made.id"},
    "trajectories_searchtext": {
        "trajectory_id": "made.id",
        "words": "old.words || to_tsvector('simple', made.words)",
    },
    "trajectories_step": {
        "project_id": "%(project)s",
        "trajectory_id": "made.id",
        "started_at": "old.started_at + made.shift",
        "duration_ms": "old.duration_ms * (0.7 + 0.6 * random())",
        "cost_usd": "old.cost_usd * (0.7 + 0.6 * random())",
        "input_tokens": "old.input_tokens + made.n %% 97",
        "total_tokens": "old.total_tokens + made.n %% 97",
        "arguments": "replace(old.arguments, 'case0', 'case' || made.n)",
        "error": "replace(old.error, 'case0', 'case' || made.n)",
    },
}
LEFT_TO_DEFAULTS = {"stored_in"}
MADE = f"""
    CREATE TEMP TABLE made ON COMMIT DROP AS
    SELECT n, name, session, person, at - old.started_at AS shift, old.id AS template,
        (substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-7' || lpad(to_hex(n % 4096), 3, '0')
            || '-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
        'case' || n || CASE WHEN n % {RARE_EVERY} = 0 THEN ' {RARE}' ELSE '' END AS words
    FROM (
        SELECT n, 'run-' || lpad(n::text, 9, '0') AS name, 'session-' || n / 4 AS session,
            'user-' || n::bigint * 7919 % 50000 AS person,
            to_timestamp(ms / 1000.0) AS at, lpad(to_hex(ms), 12, '0') AS hex,
            least(11, greatest(0, floor(12.0 * n / %(runs)s + random() - 0.5)::int)) AS version
        FROM (
            SELECT n, (%(first)s + n * %(step)s)::bigint AS ms
            FROM generate_series(%(begin)s, %(end)s - 1) AS n
        ) AS timed
    ) AS drawn
    JOIN template AS old
        ON old.version = drawn.version AND old.place = n::bigint * 7919 % {OF_VERSION}
"""
TEMPLATE = """
    CREATE TEMP TABLE template AS
    SELECT id, started_at, array_position(%s::text[], agent_version::text) - 1 AS version,
        row_number() OVER (PARTITION BY agent_version ORDER BY id) - 1 AS place
    FROM trajectories_trajectory WHERE project_id = %s
"""
SCORES = """
    INSERT INTO trajectories_score (project_id, external_id, step, name, key, trajectory_id, kind,
        value, text, source, by, comment, created_at)
    SELECT %(project)s, made.name, CASE WHEN said.name = 'relevance' THEN step.key
            ELSE '' END,
        said.name, 'code:bench', made.id, said.kind,
        CASE said.name WHEN 'relevance' THEN random() WHEN 'rating' THEN 1 + floor(5 * random())
            WHEN 'helpful' THEN (made.n % 10 < 7)::int WHEN 'words' THEN 50 + 900 * random() END,
        CASE said.kind WHEN 'category' THEN (ARRAY['billing', 'travel', 'other'])[1 + made.n % 3]
            WHEN 'yes_no' THEN CASE WHEN made.n % 10 < 7 THEN 'yes' ELSE 'no' END ELSE '' END,
        'code', 'bench', '', old.ended_at + made.shift
    FROM made JOIN old_trajectories_trajectory AS old ON old.id = made.template
    JOIN old_trajectories_step AS step ON step.trajectory_id = old.id AND step.number = 2
    JOIN LATERAL (VALUES ('relevance', 'number', 3), ('rating', 'number', 5),
        ('helpful', 'yes_no', 2), ('topic', 'category', 7), ('words', 'number', 11)
    ) AS said(name, kind, every) ON made.n % said.every = 0
"""


def templates(
    index: int, version: str, at: datetime, text: Text, shape: Shape = USUAL
) -> dict[str, Any]:
    """A run as an SDK reports it: messages, and spans in `metadata.steps`."""
    rng = text.random
    model, clock = rng.choice(MODELS), 5.0
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Help the customer. Use the tools."},
        {"role": "user", "content": f"case0 {text.of(shape.request)}"},
    ]
    spans: list[dict[str, Any]] = []

    def span(kind: str, name: str, median: float, **more: Any) -> dict[str, Any]:
        nonlocal clock
        spent = round(rng.lognormvariate(0, 0.9) * median, 1)
        made = {
            "span_id": f"{rng.getrandbits(64):016x}",
            "name": name,
            "kind": kind,
            "start_ms": clock,
            "duration_ms": spent,
            **more,
        }
        clock += spent + 3
        spans.append(made)
        return made

    for call in range(shape.calls):
        tokens = {"input_tokens": 700 + 400 * call, "output_tokens": rng.randint(30, 300)}
        span(
            "llm",
            f"chat {model}",
            900,
            model=model,
            message_index=len(messages),
            cost_usd=round(rng.random() / 100, 6),
            **tokens,
        )
        if call == shape.calls - 1:
            break
        tool = "search" if rng.random() < 0.25 else rng.choice(TOOLS)
        fails = rng.random() < (0.33 if (tool, version) == BAD else 0.03)
        function = {
            "name": tool,
            "arguments": json.dumps({"query": f"case0 {text.of(shape.query)}", "limit": 5}),
        }
        messages.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{call}", "type": "function", "function": function}],
            }
        )
        failed = {"error": f"Upstream declined case0: {text.of(30)}"} if fails else {}
        span("tool", f"execute_tool {tool}", 250, tool=tool, message_index=len(messages), **failed)
        reply = failed["error"] if fails else text.of(shape.reply)
        messages.append({"role": "tool", "tool_call_id": f"call_{call}", "content": reply})
    messages.append({"role": "assistant", "content": text.of(shape.answer)})
    agent = {
        "span_id": f"{rng.getrandbits(64):016x}",
        "name": "invoke_agent helpdesk",
        "kind": "agent",
        "agent": "helpdesk",
        "start_ms": 0.0,
        "duration_ms": round(clock, 1),
    }
    if shape.has_agent:
        for made in spans:
            made["parent_id"] = agent["span_id"]
    spent = [made for made in spans if made["kind"] == "llm"]
    return {
        "id": f"template-{index}",
        "agent": {"name": "helpdesk", "version": version},
        "model": model,
        "workload": rng.choice(WORKLOADS),
        "session_id": "session-template",
        "user_id": "user-template",
        "started_at": at.isoformat(),
        "ended_at": (at + timedelta(milliseconds=clock)).isoformat(),
        "messages": messages,
        "tools": [tool_schema(name) for name in TOOLS[: shape.tools]],
        "outcome": {"status": rng.choice(("success", "success", "success", "failure", "unknown"))},
        "usage": {
            name: sum(made[name] for made in spent)
            for name in ("input_tokens", "output_tokens", "cost_usd")
        },
        "latency_ms": round(clock, 1),
        "tags": rng.sample(("beta", "eu", "us", "night", "vip"), 2),
        "metadata": {
            "region": rng.choice(("eu-1", "us-1")),
            "steps": [agent] * shape.has_agent + spans,
        },
    }


def make_templates(project: Any, text: Text, shape: Shape) -> None:
    from apps.trajectories import digest
    from apps.trajectories.actions.store import ingest

    at = project.created_at - timedelta(days=DAYS, hours=1)
    rows = [
        templates(number * OF_VERSION + index, version, at, text, shape)
        for number, version in enumerate(VERSIONS)
        for index in range(OF_VERSION)
    ]
    done = ingest(project=project, rows=rows)
    if done.rejected:
        raise SystemExit(f"{len(done.rejected)} rows rejected: {done.rejected[:1]}")
    digest.run()


def load(project: Any, source: Any, runs: int, folder: Path, shape: Shape = USUAL) -> float | None:
    """So many runs in `project`, like those of `source`; goes on where an earlier load ended.
    Seconds; None where they are all there.
    """
    from django.db import connection, transaction

    from apps.trajectories import ids, partitions
    from apps.trajectories.models import Trajectory, TrajectoryKey

    if not Trajectory.objects.filter(project=source).exists():
        make_templates(source, Text(1), shape)
    names = TrajectoryKey.objects.filter(project=project)
    last = names.order_by("-external_id").values_list("external_id", flat=True).first()
    have, kept = int(last.split("-")[1]) + 1 if last else 0, folder / "indexes.json"
    if have >= runs and not kept.exists():
        return None
    first = source.created_at - timedelta(days=DAYS)
    with transaction.atomic():
        partitions.ensure({ids.month_of(first + timedelta(days=day)) for day in range(DAYS + 1)})
    started = time.perf_counter()
    with connection.cursor() as cursor:
        _drop_indexes(cursor, kept)
        cursor.execute("SET synchronous_commit = off")
        cursor.execute(TEMPLATE, [list(VERSIONS), source.pk])
        for table in OWN:  # without an index by run, the growing tables would be read each time
            cursor.execute(f"CREATE TEMP TABLE old_{table} AS {_of_templates(table)}", [source.pk])
            cursor.execute(f"ANALYZE old_{table}")
    for begin in range(have, runs, AT_ONCE):
        values = {
            "project": project.pk,
            "first": int(first.timestamp() * 1000),
            "step": DAYS * 86_400_000 / runs,
            "runs": runs,
            "begin": begin,
            "end": min(runs, begin + AT_ONCE),
        }
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(MADE.replace("% ", "%% "), values)
            for sql in _copies():
                cursor.execute(sql, values)
            if shape.has_scores:
                cursor.execute(SCORES.replace("% ", "%% "), values)
        if begin // AT_ONCE % 3 == 0:
            print(f"  {begin:,} runs, {time.perf_counter() - started:,.0f} s", flush=True)
    with connection.cursor() as cursor:
        cursor.execute("SET maintenance_work_mem = '512MB'")
        for sql in json.loads(kept.read_text()):
            cursor.execute(sql)
            print(f"  {sql[:60]}, {time.perf_counter() - started:,.0f} s", flush=True)
    kept.unlink()
    _count(project)
    add_up_steps(project)
    print(f"  steps are added up, {time.perf_counter() - started:,.0f} s", flush=True)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    return time.perf_counter() - started


def _of_templates(table: str) -> str:
    ids = "SELECT id FROM trajectories_trajectory WHERE project_id = %s"
    named = "id" if table == "trajectories_trajectory" else "trajectory_id"
    return f"SELECT * FROM {table} WHERE {named} IN ({ids})"


def _copies() -> Iterator[str]:
    from django.apps import apps

    models = {
        model._meta.db_table: model for model in apps.get_app_config("trajectories").models.values()
    }
    for table, own in OWN.items():
        columns = [
            field.column
            for field in models[table]._meta.concrete_fields
            if getattr(field, "columns", None) is None and field.column not in LEFT_TO_DEFAULTS
        ]
        named = "id" if "id" in columns else "trajectory_id"
        order = "made.id, old.number" if "number" in columns else "made.id"
        yield (
            f"INSERT INTO {table} ({', '.join(columns)})"
            f" SELECT {', '.join(own.get(name, f'old.{name}') for name in columns)}"
            f" FROM made JOIN old_{table} AS old ON old.{named} = made.template ORDER BY {order}"
        )


def _drop_indexes(cursor: Any, kept: Path) -> None:
    """All that are no key, and a file of how they are made again."""
    if kept.exists():
        return
    cursor.execute(
        "SELECT indexrelid::regclass, pg_get_indexdef(indexrelid) FROM pg_index"
        " WHERE indrelid = ANY (%s::regclass[]) AND NOT indisunique",
        [list(TABLES)],
    )
    found = cursor.fetchall()
    kept.write_text(json.dumps([sql.replace(" ON ONLY ", " ON ") for _, sql in found]))
    for name, _ in found:
        cursor.execute(f"DROP INDEX {name}")


def add_up_steps(project: Any) -> None:
    """As the task does, hour by hour, without waiting until they are quiet."""
    from django.utils import timezone

    from apps.trajectories import step_totals

    step_totals.note_all(project.pk)
    step_totals.add_up(math.inf, timezone.now() + timedelta(hours=1))


def _count(project: Any) -> None:
    """What the digest adds up: hours, the choices of filters; cells are of no use here."""
    from django.db import connection

    from apps.trajectories.models import Facet, HourlyCount
    from apps.trajectories.rollups import FACETS, KIND

    kind = ", ".join(KIND)
    tokens = ("input_tokens", "output_tokens", "cost_usd", "latency_ms")
    values = [*FACETS.items(), ("tool", "unnest(tool_names)"), ("tag", "unnest(tags)")]
    HourlyCount.objects.filter(project=project).delete()
    Facet.objects.filter(project=project).delete()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO trajectories_hourlycount (project_id, hour, {kind}, trajectories,"
            f" {', '.join(tokens)}, with_latency, cache_read_tokens, cache_write_tokens,"
            f" reasoning_tokens, unpriced) SELECT project_id, date_trunc('hour', started_at),"
            f" {kind}, count(*), {', '.join(f'coalesce(sum({name}), 0)' for name in tokens)},"
            " count(latency_ms), 0, 0, 0, 0 FROM trajectories_trajectory WHERE project_id = %s"
            f" GROUP BY 1, 2, {kind}",
            [project.pk],
        )
        for name, value in values:
            cursor.execute(
                "INSERT INTO trajectories_facet (project_id, kind, value, trajectories) SELECT"
                f" %s, %s, {value}, count(*) FROM trajectories_trajectory WHERE project_id = %s"
                " GROUP BY 3",
                [project.pk, name, project.pk],
            )
