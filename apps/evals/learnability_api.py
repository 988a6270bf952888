"""What RL would learn from the tasks of an evaluation, over REST: the page's numbers and its
table.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import NUMBER, described, page
from apps.core.query import number_of, whole_number
from apps.core.routes import api, shows
from apps.core.scopes import RESULT
from apps.evals.holdout.view_log import record_output_view
from apps.evals.learnability.run import RunLearnability
from apps.evals.learnability.table import KINDS, Row, is_kind, ordered, rows_of
from apps.evals.lookups import CURSOR, LIMIT, find_run, needs_right

TASK = {
    "type": "object",
    "required": [
        "task",
        "key",
        "group",
        "n",
        "passed",
        "reward",
        "spread",
        "kind",
        "signal",
        "picked",
        "why",
    ],
    "properties": {
        "task": {"type": "string", "format": "uuid"},
        "key": {"type": "string"},
        "group": {"type": "string"},
        "n": {"type": "integer", "description": "Samples that were scored"},
        "passed": {"type": "integer"},
        "reward": NUMBER,
        "spread": NUMBER | {"description": "Standard deviation of its rewards"},
        "kind": {"enum": ["mixed", "all_pass", "all_fail"]},
        "signal": NUMBER | {"description": "Probability that a group has both outcomes"},
        "picked": {"type": "boolean"},
        "why": {"type": "string", "description": "Why it is not picked"},
    },
}
FOUND = page(TASK)
FOUND |= {
    "required": [
        *FOUND["required"],
        "sentence",
        "tasks",
        "learns_from",
        "picked",
        "why_not",
        "counts",
        "pass_at",
    ],
    "properties": (
        FOUND["properties"]
        | {
            "sentence": {"type": "string"},
            "tasks": {"type": "integer", "description": "With a scored sample"},
            "learns_from": {
                "type": "integer",
                "description": "Tasks whose samples differ in reward",
            },
            "picked": {"type": "integer"},
            "why_not": {
                "type": "string",
                "description": "Why none of its tasks can be picked for training",
            },
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            "pass_at": {"type": "object", "additionalProperties": {"type": "number"}},
            "expected_signal": NUMBER,
            "group_size": {"type": "integer"},
        }
    ),
}


@shows("outputs and scores on held-out tasks, with the right")
@extend_schema(
    operation_id="v1_eval_runs_learnability",
    responses=described({200: FOUND}, 400, 403, 404),
    parameters=[
        OpenApiParameter(
            "group_size", whole_number(2, 64, 8), description="Samples of a task in one GRPO step"
        ),
        OpenApiParameter(
            "per_group", whole_number(1, 100_000), description="Max tasks to pick per group"
        ),
        OpenApiParameter("kind", enum=list(KINDS)),
        CURSOR,
        LIMIT,
    ],
    description=(
        "The learnability of each task in an evaluation, and the keys of the tasks that would be"
        " picked for training. On a hold-out this requires a key with access to hold-outs and"
        " counts as a view."
    ),
)
@api(GET=RESULT)
def learnability(request: Request, pk: UUID) -> Response:
    run = find_run(request, pk)
    needs_right(request, run.split)
    size, limit = number_of(request, "group_size"), number_of(request, "limit")
    per_group = number_of(request, "per_group")
    kind, cursor = (request.query_params.get(name, "") for name in ("kind", "cursor"))
    learning = RunLearnability(run, size)
    rows = rows_of(learning, per_group)
    if rows:
        record_output_view(run, by=request.auth)
    wanted = [row for row in ordered(rows, "task") if is_kind(row, kind) and row.key > cursor]
    found, shown = learning.found, wanted[:limit]
    return Response(
        {
            "sentence": found.sentence,
            "tasks": len(rows),
            "learns_from": sum(row.view.has_signal for row in rows),
            "picked": sum(row.picked for row in rows),
            "why_not": learning.why_not(),
            "counts": found.counts,
            "pass_at": found.pass_at,
            "expected_signal": found.expected_signal,
            "group_size": size,
            "results": [row_json(row) for row in shown],
            "next": shown[-1].key if len(wanted) > limit else None,
        }
    )


def row_json(row: Row) -> dict[str, Any]:
    view = row.view
    return {
        "task": view.task,
        "key": row.key,
        "group": view.group,
        "n": view.n,
        "passed": view.passed,
        "reward": view.mean_reward,
        "spread": view.spread,
        "kind": view.kind,
        "signal": row.signal,
        "picked": row.picked,
        "why": row.why,
    }
