"""Examples over REST: those that sources currently have, and those that a run learned from."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import described, page
from apps.core.query import number_of, whole_number
from apps.core.routes import HOW_MANY, UNCOUNTED, api, shows
from apps.core.scopes import READABLE
from apps.evals.lookups import LIMIT, find_run, find_set
from apps.training import judged
from apps.training.models import SHAPES, SOURCES, Example, Shape, Source
from apps.training.runs_api import find
from apps.training.sources import find_examples

SHOWN = 100
STRING, COUNTS = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "integer"}}
NAMED = {"type": ["string", "null"], "format": "uuid"}
EXAMPLE = {
    "type": "object",
    "required": ["source", "task", "trajectory"],
    "properties": {
        "source": {"enum": Source.values},
        "task": NAMED,
        "trajectory": NAMED,
        "messages": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Without the environment's messages",
        },
        "chosen": STRING,
        "rejected": STRING,
        "answer": STRING,
        "good": {"type": "boolean"},
    },
}
FOUND = {
    "type": "object",
    "required": ["shape", "count", "sources", "left_out", "results"],
    "properties": {
        "shape": {"enum": Shape.values},
        "count": {"type": "integer"},
        "sources": COUNTS,
        "left_out": COUNTS | {"description": "How many answers were left out, by reason"},
        "results": {"type": "array", "items": EXAMPLE, "description": f"The first {SHOWN}"},
    },
}


@shows(HOW_MANY, UNCOUNTED)
@extend_schema(
    operation_id="v1_training_examples",
    responses=described({200: FOUND}, 400, 404),
    parameters=[
        OpenApiParameter("method", enum=list(SHAPES), required=True),
        OpenApiParameter("eval_set", str, required=True, description="name@version or id"),
        OpenApiParameter(
            "source",
            {"type": "array", "items": {"enum": Source.values}},
            description="Default: all sources of the method",
        ),
        OpenApiParameter(
            "evaluation",
            str,
            description="Of the set's training tasks, for the source `evaluation`",
        ),
    ],
    description=(
        "The examples currently available to a method that learns from judged answers, and why the"
        " others are left out."
    ),
)
@api(GET=READABLE)
def available(request: Request) -> Response:
    given = request.query_params
    method, wanted = given["method"], given.getlist("source")
    if strange := set(wanted) - set(SOURCES[method]):
        raise ValidationError(
            {
                "path": "source",
                "error": f"{min(strange)!r} is not one of {', '.join(SOURCES[method])}",
            }
        )
    eval_set = find_set(request, given["eval_set"])
    evaluation = find_run(request, given["evaluation"]) if given.get("evaluation") else None
    shape = SHAPES[method].value
    found = find_examples(
        eval_set=eval_set, shape=shape, sources=wanted or SOURCES[method], evaluation=evaluation
    )
    return Response(
        {
            "shape": shape,
            "count": len(found.examples),
            "sources": found.by_source,
            "left_out": dict(found.left_out),
            "results": [as_json(one, one.task, one.trajectory) for one in found.examples[:SHOWN]],
        }
    )


@extend_schema(
    operation_id="v1_training_runs_examples",
    responses=described({200: page(EXAMPLE)}, 400, 404),
    parameters=[OpenApiParameter("cursor", whole_number(0, 2**31 - 1, 0)), LIMIT],
    description="The examples a run learned from, in frozen order.",
)
@api(GET=READABLE)
def of_run(request: Request, pk: UUID) -> Response:
    limit, start = number_of(request, "limit"), number_of(request, "cursor")
    rows = list(find(request, pk).dataset.examples.filter(position__gte=start)[: limit + 1])
    following = str(rows[limit].position) if len(rows) > limit else None
    results = [as_json(row, row.task_id, row.trajectory_id) for row in rows[:limit]]
    return Response({"results": results, "next": following})


def as_json(example: judged.Example | Example, task: Any, trajectory: Any) -> dict[str, Any]:
    data = {name: value for name, value in example.data.items() if name != "tools"}
    return {
        "source": example.source,
        "task": task and str(task),
        "trajectory": trajectory and str(trajectory),
    } | data
