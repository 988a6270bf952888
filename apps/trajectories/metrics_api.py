"""The figures of charts over REST."""

from __future__ import annotations

from functools import partial
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import NUMBER, described
from apps.core.routes import RUNS, api, shows
from apps.core.scopes import READABLE
from apps.core.timeouts import TooLong, patience
from apps.trajectories import uncounted
from apps.trajectories.api import FILTERS, Unavailable
from apps.trajectories.filters import runs_of
from apps.trajectories.metrics import query
from apps.trajectories.metrics.cells import MEASURES, titles
from apps.trajectories.metrics.query import Answer, Point
from apps.trajectories.shown import figures_shown

METRICS_MS = 10_000
INTERVAL = {
    "type": ["array", "null"],
    "items": {"type": "number"},
    "description": "Wilson's, 95%, of a proportion",
}
POINT = {
    "type": "object",
    "required": ["at", "value", "n", "interval"],
    "properties": {
        "at": {
            "type": ["string", "null"],
            "format": "date-time",
            "description": "When the bucket begins, UTC",
        },
        "value": NUMBER | {"description": "null: nothing is known"},
        "n": {"type": "integer", "description": "How many runs are behind the value"},
        "interval": INTERVAL,
    },
}
SERIES = {
    "type": "object",
    "required": ["name", "measure", "unit", "runs", "whole", "points"],
    "properties": {
        "name": {"type": "string"},
        "measure": {"type": "string", "enum": list(MEASURES)},
        "unit": {"type": "string", "enum": ["runs", "share", "tokens", "usd", "ms"]},
        "runs": {"type": "integer"},
        "whole": POINT,
        "points": {"type": "array", "items": POINT},
    },
}
ANSWER = {
    "type": "object",
    "required": [
        "measure",
        "by",
        "bucket",
        "runs",
        "unknown_outcomes",
        "read",
        "complete",
        "uncounted_runs",
        "note",
        "series",
    ],
    "properties": {
        "measure": {"type": "string"},
        "by": {"type": "string"},
        "bucket": {"type": "string", "enum": list(query.UNITS)},
        "runs": {
            "type": "integer",
            "description": "That match; with `by=tool`, once per tool that they called",
        },
        "unknown_outcomes": {
            "type": "integer",
            "description": "How many of them have no known outcome",
        },
        "read": {
            "type": ["integer", "null"],
            "description": "Rows that were read; null: counted from roll-ups",
        },
        "complete": {
            "type": "boolean",
            "description": (
                f"false: only the newest {query.NEWEST:,} matching runs were read, or runs have"
                " just arrived that are not counted yet"
            ),
        },
        "uncounted_runs": uncounted.SCHEMA,
        "note": {"type": "string"},
        "series": {"type": "array", "items": SERIES},
    },
}


@shows(RUNS)
@extend_schema(
    operation_id="v1_metrics",
    responses=described({200: ANSWER}, 400, 503),
    description=(
        "A metric over time, as on the Charts page: counts, failure rate, tokens, cost, latency"
        " percentiles (accurate to 2%). Accepts the filters of the trajectory list, including"
        " ranges; without `since`, `from` or `to` it covers all time. Roll-ups are used if at most"
        " one of outcome, agent, agent_version, model, workload and tool is filtered or grouped by;"
        " otherwise rows are read."
    ),
    parameters=[
        OpenApiParameter("measure", enum=list(titles()), required=True),
        OpenApiParameter(
            "by",
            enum=list(query.BY),
            description=f"At most {query.GROUPS + 1} groups; the smallest are one",
        ),
        OpenApiParameter(
            "bucket",
            enum=list(query.UNITS),
            description="A larger bucket is used if there would be too many points",
        ),
        *FILTERS,
    ],
)
@api(GET=READABLE)
def metrics(request: Request) -> Response:
    project, given = request.auth.project, request.query_params
    chosen = {name: given.get(name, "") for name in ("measure", "by", "bucket")}
    try:
        with patience(METRICS_MS):
            answer = query.ask(project, given, **chosen)
            runs = partial(runs_of, project, given)
            figures_shown(project, runs, given, to=request.auth, where="figures of runs by API")
    except TooLong as error:
        raise Unavailable(
            "Query too broad: no answer in time. Choose a shorter time range or fewer filters."
        ) from error
    return Response(as_json(answer, chosen["by"]))


def as_json(answer: Answer, by: str) -> dict[str, Any]:
    return {
        "measure": answer.measure,
        "by": by,
        "bucket": answer.unit,
        "runs": answer.total.runs,
        "unknown_outcomes": answer.total.unknown,
        "read": answer.read,
        "complete": answer.is_complete,
        "uncounted_runs": answer.uncounted,
        "note": answer.note,
        "series": [
            {
                "name": one.name,
                "measure": one.measure,
                "unit": MEASURES[one.measure].unit,
                "runs": one.runs,
                "whole": _point(one.whole),
                "points": [_point(point) for point in one.points],
            }
            for one in answer.series
        ],
    }


def _point(point: Point) -> dict[str, Any]:
    return {"at": point.at, "value": point.value, "n": point.n, "interval": point.interval}
