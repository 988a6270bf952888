"""The effect of a promotion over REST."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import described
from apps.core.query import number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import RESULT
from apps.evals.lookups import find_version
from apps.promotion.effects.graph import as_json as graph_json
from apps.promotion.effects.graph import graph_of
from apps.promotion.effects.report import as_json, effect_of
from apps.promotion.effects.windows import LONGEST, USUAL
from apps.promotion.models import Promotion

SHIFT = {
    "type": "object",
    "properties": {
        "before": {"type": "object", "description": "{failed, runs, rate}"},
        "after": {"type": "object", "description": "{failed, runs, rate}"},
        "difference": {"type": ["number", "null"]},
        "low": {"type": ["number", "null"]},
        "high": {"type": ["number", "null"]},
        "mark": {"enum": ["fixed", "improved", "unchanged", "worse", "reopened", "too few runs"]},
    },
    "additionalProperties": True,
}
EFFECT = {
    "type": "object",
    "properties": {
        "promotion": {"type": "integer"},
        "channel": {"type": "string"},
        "from_version": {"type": ["string", "null"]},
        "to_version": {"type": "string"},
        "days": {"type": "integer"},
        "runs_name_versions": {
            "type": "boolean",
            "description": "true: only runs of the two versions are counted; false: all runs",
        },
        "windows": {
            "type": "object",
            "description": "before and after: {from, to, runs, failed, latency_ms, cost_usd}",
        },
        "failures": SHIFT,
        "modes": {"type": "array", "items": SHIFT},
        "clusters": {"type": "array", "items": SHIFT},
        "also_changed": {
            "type": "array",
            "items": {"type": "object"},
            "description": "{what, times, last}",
        },
        "costs": {
            "type": "array",
            "items": {"type": "object"},
            "description": "{what, seconds, usd}",
        },
        "saves_per_week": {
            "type": ["object", "null"],
            "description": "{failures, low, high, cost_usd}",
        },
    },
    "additionalProperties": True,
}
FAILURES = {
    "before": {"failed": 84, "runs": 400, "rate": 0.21},
    "after": {"failed": 38, "runs": 410, "rate": 0.0927},
    "difference": -0.1173,
    "low": -0.1664,
    "high": -0.0684,
    "mark": "improved",
}
WEEK_BEFORE = {
    "from": "2026-11-15T08:00:00Z",
    "to": "2026-11-22T08:00:00Z",
    "runs": 400,
    "failed": 84,
    "latency_ms": 910.0,
    "cost_usd": 3.2,
}
WEEK_AFTER = {
    "from": "2026-11-22T08:00:00Z",
    "to": "2026-11-29T08:00:00Z",
    "runs": 410,
    "failed": 38,
    "latency_ms": 880.0,
    "cost_usd": 3.1,
}
EFFECT_EXAMPLE = OpenApiExample(
    "Fewer failures",
    response_only=True,
    status_codes=["200"],
    value={
        "promotion": 7,
        "kind": "promote",
        "channel": "production",
        "at": "2026-11-22T08:00:00Z",
        "from_version": "support-v3",
        "to_version": "support-v4",
        "days": 7,
        "runs_name_versions": True,
        "windows": {"before": WEEK_BEFORE, "after": WEEK_AFTER},
        "failures": FAILURES,
        "modes": [{"mode": "wrong-tool", "name": "Wrong tool choice"} | FAILURES],
        "clusters": [],
        "also_changed": [],
        "costs": [{"what": "Training", "seconds": 1840.0, "usd": None}],
        "saves_per_week": {"failures": 48.1, "low": 28.0, "high": 68.2, "cost_usd": None},
    },
)


@extend_schema(
    operation_id="v1_channels_effect",
    responses=described({200: EFFECT}, 400, 404),
    examples=[EFFECT_EXAMPLE],
    parameters=[
        OpenApiParameter("days", whole_number(1, LONGEST, USUAL), description="Before and after")
    ],
    description=(
        "Production before and after a promotion or rollback (an `id` from the channel’s history):"
        " failure rates by mode and cluster with simultaneous intervals, other changes, and the"
        " version's cost and savings (`saves_per_week`, null until runs arrived on two whole days"
        " after the move). The time windows end at the channel’s previous and next moves."
    ),
)
@api(GET=RESULT)
def effect(request: Request, name: str, pk: int) -> Response:
    rows = Promotion.objects.filter(channel__project=request.auth.project, channel__name=name)
    move = (
        rows.filter(pk=pk).select_related("channel__project", "from_version", "to_version").first()
    )
    if move is None:
        raise NotFound("This channel’s history has no such entry.")
    return Response(as_json(effect_of(move, number_of(request, "days"))))


GRAPH = {
    "type": "object",
    "properties": {
        "nodes": {
            "type": "array",
            "items": {"type": "object"},
            "description": "{id, kind, title, detail, url}",
        },
        "edges": {
            "type": "array",
            "items": {"type": "object"},
            "description": "{from, to}, ids of nodes",
        },
    },
}


@extend_schema(
    operation_id="v1_lineage_graph",
    responses=described({200: GRAPH}, 400, 404),
    parameters=[
        OpenApiParameter(
            "version", str, required=True, description="A model version, such as support-v4"
        )
    ],
    description=(
        "From a version down to the production runs it learned from, by failure mode, and up to the"
        " channels and traffic it served. Groups of runs are a single node with a count; their"
        " `url` lists them."
    ),
)
@api(GET=RESULT)
def graph(request: Request) -> Response:
    version = find_version(request, request.query_params["version"])
    return Response(graph_json(graph_of(request.auth.project, version)))
