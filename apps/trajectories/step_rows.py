"""Steps as answers: pages of them, and files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from django.db.models import QuerySet

from apps.core.models import Project
from apps.core.sorting import Sorting
from apps.core.spreadsheets import cell
from apps.trajectories.ids import time_of
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.ordering import of_steps, page_of
from apps.trajectories.step_filters import SORTS, apply_filters, first_of, matching

AT_ONCE = 1_000
COLUMNS = (
    "run",
    "key",
    "number",
    "kind",
    "name",
    "status",
    "error",
    "arguments",
    "model",
    "agent",
    "agent_version",
    "started_at",
    "run_started_at",
    "duration_ms",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "message_index",
)


def page(project: Project, given: Mapping[str, str], limit: int) -> dict[str, Any]:
    """As `ordering.page_of`; `rows` are of runs that are there. Raises QueryError."""
    order = Sorting.of(given, SORTS)
    is_by_time = order.chosen in ("", "started")
    rows = (matching if is_by_time else apply_filters)(project, given)
    found = page_of(
        rows, given.get("cursor"), limit, order, of_steps(project.pk), first_of(project, given)
    )
    found["rows"] = with_runs(found["rows"])
    return found


def with_runs(rows: list[Step]) -> list[Step]:
    """Those whose run was not deleted meanwhile, each with its run's `external_id` and
    `run_started_at`.
    """
    runs = Trajectory.objects.filter(pk__in={row.trajectory_id for row in rows})
    names = dict(runs.values_list("pk", "external_id"))
    for row in rows:
        row.external_id = names.get(row.trajectory_id)  # type: ignore[attr-defined]
        row.run_started_at = time_of(row.trajectory_id)  # type: ignore[attr-defined]
    return [row for row in rows if row.external_id is not None]


def as_json(row: Step) -> dict[str, Any]:
    """COLUMNS by name."""
    return {
        "run": row.external_id,
        "key": row.key,
        "number": row.number,
        "kind": row.kind,
        "name": row.name,
        "status": row.status,
        "error": row.error,
        "arguments": row.arguments,
        "model": row.model,
        "agent": row.agent_name,
        "agent_version": row.agent_version,
        "started_at": row.started_at,
        "run_started_at": row.run_started_at,
        "duration_ms": row.duration_ms,
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "cost_usd": row.cost_usd,
        "message_index": row.message_index,
    }


def jsonl(rows: QuerySet[Step]) -> Iterator[bytes]:
    for row in _read(rows):
        yield msgspec.json.encode(as_json(row)) + b"\n"


def csv_lines(rows: QuerySet[Step]) -> Iterator[bytes]:
    """With a header, and the byte order mark that spreadsheets need."""
    yield "\ufeff".encode() + csv_line(COLUMNS)
    for row in _read(rows):
        yield csv_line(as_json(row).values())


def csv_line(values: Iterable[object]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(map(cell, values))
    return out.getvalue().encode()


def _read(rows: QuerySet[Step]) -> Iterator[Step]:
    found = rows.order_by("pk").iterator(AT_ONCE)
    while some := list(islice(found, AT_ONCE)):
        yield from with_runs(some)


FILES = {
    "jsonl": ("application/x-ndjson", jsonl),
    "csv": ("text/csv; charset=utf-8", csv_lines),
}
