"""Eval sets over REST. The key decides the project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db.models import Count
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, LINES, described, results
from apps.evals import actions, exporting, importing
from apps.evals.formats import RowProblem, TaskRow, own, read
from apps.evals.holdout.view_log import record_refusal, record_view, views_of
from apps.evals.lookups import find_set, needs_right, one_of
from apps.evals.models import EvalSet, EvalSetState, Split
from apps.trajectories.api import number_of, parts_of

PAGE, MAX_PAGE, MAX_ROWS = 100, 1000, 5000
ROW = {
    "type": "object",
    "required": ["messages", "expected"],
    "properties": {
        "key": {"type": "string", "maxLength": 120},
        "messages": {"type": "array", "items": {"type": "object"}},
        "expected": {"type": "object"},
        "tools": {"type": "array", "items": {"type": "object"}},
        "demonstration": {"type": "string"},
        "group": {"type": "string", "maxLength": 200},
        "split": {"enum": [*Split.values, ""]},
        "metadata": {"type": "object"},
    },
    "additionalProperties": False,
}
SET = {
    "type": "object",
    "required": ["id", "name", "version", "state", "counts", "holdout_views"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "name": {"type": "string"},
        "version": {"type": "integer"},
        "state": {"enum": EvalSetState.values},
        "digest": {"type": "string"},
        "description": {"type": "string"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "holdout_views": {"type": "integer"},
    },
}
WITH_TASKS = {
    "type": "object",
    "required": [*SET["required"], "tasks", "next"],
    "properties": SET["properties"]
    | {
        "tasks": {"type": "array", "items": {"type": "object", "required": ["key", "split"]}},
        "next": {"type": ["integer", "null"]},
    },
}
STORED = {
    "type": "object",
    "required": ["made", "duplicates", "left_out", "rejected"],
    "properties": {
        "made": {"type": "integer"},
        "duplicates": {"type": "integer"},
        "left_out": {"type": "integer"},
        "rejected": {"type": "array", "items": {"type": "object"}},
    },
}


@extend_schema(
    operation_id="v1_eval_sets_list",
    responses=described({200: results(SET)}),
    description="All eval sets, every version of each, with the number of tasks in each split.",
)
@api_view(["GET"])
def collection(request: Request) -> Response:
    sets = EvalSet.objects.filter(project=request.auth.project)
    return Response({"results": [as_json(eval_set) for eval_set in sets]})


@extend_schema(
    operation_id="v1_eval_sets_read",
    responses=described({200: WITH_TASKS}, 400, 403, 404),
    description="A set with its tasks, in Flywheel's own form. Of a held-out task only its place and split are returned, unless "
    "`holdout=1` asks for more: that needs a key that may see hold-outs, and each such response counts as a view.",
    parameters=[
        OpenApiParameter("split", enum=Split.values),
        OpenApiParameter("holdout", enum=["1"], description="Show the hold-out's tasks. Counted."),
        OpenApiParameter("offset", int),
        OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, else {PAGE}"),
    ],
)
@api_view(["GET"])
def item(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    limit, offset = number_of(request, "limit", PAGE, 1, MAX_PAGE), number_of(request, "offset", 0, 0, 10**9)
    tasks = eval_set.tasks.select_related("eval_set", "trajectory", "variant_of").order_by("key")
    if split := one_of(request, "split", Split.values):
        tasks = tasks.filter(split=split)
    page = list(tasks[offset : offset + limit + 1])
    shown, more = page[:limit], len(page) > limit
    open_ = request.query_params.get("holdout") == "1"
    if open_:
        needs_right(request, Split.HOLDOUT)
    if open_ and any(task.split == Split.HOLDOUT for task in shown):
        record_view(eval_set=eval_set, by=request.auth, detail="tasks by API")
    told = [
        _task(task) if open_ or task.split != Split.HOLDOUT else {"key": f"held-out-{number}", "split": task.split}
        for number, task in enumerate(shown, offset + 1)
    ]
    found = as_json(eval_set)
    return Response(found | {"tasks": told, "next": offset + limit if more else None})


@extend_schema(
    operation_id="v1_eval_sets_add_tasks",
    request={JSON: {"type": "array", "items": ROW, "maxItems": MAX_ROWS}, LINES: {"type": "string"}},
    responses=described({200: STORED, 201: STORED}, 400, 404, 409, 413),
    description=f"Adds up to {MAX_ROWS} tasks to a draft: a JSON array, or JSON Lines in Flywheel's own form. Good rows are "
    "stored though others are bad; rows too similar to the other side of a hold-out are skipped.",
)
@api_view(["POST"])
def tasks(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    rejected: list[dict] = []
    rows = list(_good(_lines(request), rejected))
    name = f"API key “{request.auth.name}”"
    try:
        done = importing.store_rows(
            eval_set=eval_set, rows=rows, name=name, choice=importing.Choice("flywheel"), by=None, viewer=request.auth
        )
    except actions.EvalSetError as error:
        record_refusal(eval_set.project, error, by=request.auth)
        return Response({"detail": str(error)}, status=409)
    rejected += [{"line": None, "field": "split", "error": problem} for problem in done.problems]
    left_out = done.guarded + done.leaking
    found = {"made": done.made, "duplicates": done.duplicates, "left_out": left_out, "rejected": rejected}
    return Response(found, status=201 if done.made else 200)


def _lines(request: Request) -> list[bytes]:
    """One JSON text a task. Raises ValidationError, TooLarge."""
    parts = parts_of(request, MAX_ROWS, "tasks at once")
    return [bytes(part).replace(b"\r", b" ").replace(b"\n", b" ") for part in parts]


def _good(lines: list[bytes], rejected: list[dict]) -> Iterator[TaskRow]:
    for found in read("flywheel", lines) if lines else ():
        if isinstance(found, RowProblem):
            rejected.append({"line": found.line, "field": found.field, "error": found.message})
        else:
            yield found


def as_json(eval_set: EvalSet) -> dict[str, Any]:
    counts = dict(eval_set.tasks.values_list("split").annotate(n=Count("pk")).order_by("split"))
    return {
        "id": str(eval_set.pk),
        "name": eval_set.slug,
        "version": eval_set.version,
        "state": eval_set.state,
        "digest": eval_set.digest,
        "description": eval_set.description,
        "counts": counts,
        "holdout_views": views_of(eval_set).count(),
    }


def _task(task: Any) -> dict[str, Any]:
    row = exporting.row_of(task)
    return {name: getattr(row, name) for name in own.FIELDS}
