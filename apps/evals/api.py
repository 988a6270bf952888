"""Eval sets over REST: list, read, create, add tasks. The key determines the project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from uuid import UUID

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, LINE, LINES, described, page
from apps.core.paging import listed
from apps.core.query import number_of, whole_number
from apps.core.routes import SIDES, TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import MANAGED, READABLE
from apps.evals import actions, exporting, importing
from apps.evals.formats import RowProblem, TaskRow, own, read
from apps.evals.holdout.view_log import record_membership, record_view
from apps.evals.lookups import CURSOR, LIMIT, filtered, find_set, form_of, needs_right
from apps.evals.models import EvalSet, EvalSetState, Split, Task
from apps.evals.schema import SET, as_json
from apps.trajectories.api import parts_of
from workers.lib.typed import json_schema

PAGE, MAX_PAGE, MAX_ROWS = 100, 1000, 5000
ROW = {
    "type": "object",
    "required": ["expected"],
    "anyOf": [{"required": ["messages"]}, {"required": ["prompt"]}],
    "properties": {
        "key": {"type": "string", "maxLength": 120},
        "id": {
            "type": "string",
            "maxLength": 120,
            "description": "The same as `key`, as in environment packages",
        },
        "messages": {"type": "array", "items": {"type": "object"}},
        "prompt": {"type": "string", "description": "The user's message, in place of `messages`"},
        "expected": {"type": "object"},
        "tools": {"type": "array", "items": {"type": "object"}},
        "demonstration": {"type": "string"},
        "group": {"type": "string", "maxLength": 200},
        "split": {"enum": [*Split.values, ""]},
        "metadata": {"type": "object"},
    },
    "additionalProperties": False,
}
WITH_TASKS = {
    "type": "object",
    "required": [*SET["required"], "tasks", "next"],
    "properties": (
        SET["properties"]
        | {
            "tasks": {"type": "array", "items": {"type": "object", "required": ["key", "split"]}},
            "next": {"type": ["integer", "null"]},
        }
    ),
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


class NewSet(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,80}\Z")]
    description: Annotated[str, Meta(max_length=2000, pattern=LINE)] = ""


NEW_EXAMPLE = OpenApiExample(
    "A new set", {"name": "support", "description": "Tickets that went wrong"}, request_only=True
)


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    methods=["GET"],
    operation_id="v1_eval_sets_list",
    responses=described({200: page(SET)}, 400),
    parameters=[
        OpenApiParameter("name", str, description="Versions of this set only"),
        OpenApiParameter("state", enum=EvalSetState.values),
        CURSOR,
        LIMIT,
    ],
    description=(
        "All versions of all eval sets, newest first, with the number of tasks in each split."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_eval_sets_create",
    request={JSON: json_schema(NewSet)},
    responses=described({201: SET}, 400, 403, 409, 413),
    examples=[NEW_EXAMPLE],
    description="Creates an eval set: version 1, a draft without tasks. 409 if the name is taken.",
)
@api(GET=READABLE, POST=MANAGED)
def collection(request: Request) -> Response:
    if request.method == "GET":
        rows = EvalSet.objects.filter(project=request.auth.project)
        if name := request.query_params.get("name", ""):
            rows = rows.filter(slug=name)
        return listed(
            request,
            filtered(request, rows, {"state": None}),
            lambda _, row: as_json(row),
        )
    by, asked = member_of(request).user, form_of(request, NewSet)
    made = actions.create_eval_set(
        project=request.auth.project, slug=asked.name, description=asked.description, by=by
    )
    return Response(as_json(made), status=201)


@shows("the held-out tasks, with `holdout=1` and the right")
@extend_schema(
    operation_id="v1_eval_sets_read",
    responses=described({200: WITH_TASKS}, 400, 403, 404),
    description=(
        "An eval set with its tasks, in Flywheel's own format. For held-out tasks, only position"
        " and split are returned unless `holdout=1` is given, which requires a key with access to"
        " hold-outs and counts as a view."
    ),
    parameters=[
        OpenApiParameter("split", enum=Split.values),
        OpenApiParameter(
            "holdout", enum=["1"], description="Include the held-out tasks. Counts as a view."
        ),
        OpenApiParameter("offset", whole_number(0, 10**9, 0)),
        OpenApiParameter("limit", whole_number(1, MAX_PAGE, PAGE)),
    ],
)
@api(GET=READABLE)
def item(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    tasks = eval_set.tasks.select_related("eval_set", "trajectory", "variant_of").order_by("key")
    if split := request.query_params.get("split"):
        tasks = tasks.filter(split=split)
    page = list(tasks[offset : offset + limit + 1])
    shown, more = page[:limit], len(page) > limit
    open_ = request.query_params.get("holdout") == "1"
    if open_:
        needs_right(request, Split.HOLDOUT)
    if open_ and any(task.split == Split.HOLDOUT for task in shown):
        record_view(eval_set=eval_set, by=request.auth, detail="tasks by API")
    told = [
        (
            _task(task)
            if open_ or task.split != Split.HOLDOUT
            else {"key": f"held-out-{number}", "split": task.split}
        )
        for number, task in enumerate(shown, offset + 1)
    ]
    found = as_json(eval_set)
    return Response(found | {"tasks": told, "next": offset + limit if more else None})


@shows(SIDES)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_eval_sets_remove_task",
    responses=described({}, 400, 403, 404, 409) | {204: None},
    parameters=[OpenApiParameter("key", str, required=True, description="The task's key")],
    description=(
        "Removes a task from a draft. A held-out task requires a key with access to hold-outs."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_eval_sets_add_tasks",
    request={
        JSON: {"type": "array", "items": ROW, "maxItems": MAX_ROWS},
        LINES: {"type": "string"},
    },
    responses=described({200: STORED, 201: STORED}, 400, 403, 404, 409, 413),
    description=(
        f"Adds up to {MAX_ROWS} tasks to a draft: a JSON array, or JSON Lines in Flywheel's own"
        " format. Valid rows are stored even if others are invalid; rows too similar to the other"
        " side of a hold-out are skipped."
    ),
)
@api(POST=MANAGED, DELETE=MANAGED)
def tasks(request: Request, pk: UUID) -> Response:
    eval_set = find_set(request, pk)
    member_of(request)
    if request.method == "DELETE":
        return _remove(request, eval_set)
    rejected: list[dict] = []
    rows = list(_good(_lines(request), rejected))
    name = f"API key “{request.auth.name}”"
    done = importing.store_rows(
        eval_set=eval_set,
        rows=rows,
        name=name,
        choice=importing.Choice("flywheel"),
        by=None,
        viewer=request.auth,
    )
    rejected += [{"line": None, "field": "split", "error": problem} for problem in done.problems]
    left_out = done.guarded + done.leaking
    found = {
        "made": done.made,
        "duplicates": done.duplicates,
        "left_out": left_out,
        "rejected": rejected,
    }
    return Response(found, status=201 if done.made else 200)


def _remove(request: Request, eval_set: EvalSet) -> Response:
    key = request.query_params["key"]
    task = Task.objects.select_related("eval_set").filter(eval_set=eval_set, key=key).first()
    if task is None:
        raise NotFound("This eval set has no task with this key.")
    if task.split == Split.HOLDOUT:  # whoever is refused learns that the task is held out
        detail = f"a task of {eval_set}, by its key"
        record_membership(eval_set.project, [task.canonical_hash], by=request.auth, detail=detail)
    needs_right(request, task.split)
    actions.remove_task(task=task, by=request.auth.created_by)
    return Response(status=204)


def _lines(request: Request) -> list[bytes]:
    """One JSON text per task. Raises ValidationError, TooLarge."""
    parts = parts_of(request, MAX_ROWS, "tasks at once")
    return [bytes(part).replace(b"\r", b" ").replace(b"\n", b" ") for part in parts]


def _good(lines: list[bytes], rejected: list[dict]) -> Iterator[TaskRow]:
    for found in read("flywheel", lines) if lines else ():
        if isinstance(found, RowProblem):
            rejected.append({"line": found.line, "field": found.field, "error": found.message})
        else:
            yield found


def _task(task: Any) -> dict[str, Any]:
    row = exporting.row_of(task)
    return {name: getattr(row, name) for name in own.FIELDS}
