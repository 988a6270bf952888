"""What the gate needs besides two evaluations, over REST: read it, and measure what is missing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import JobState
from apps.core.openapi import JSON, described
from apps.core.routes import api
from apps.core.scopes import RESULT, RUN
from apps.evals.lookups import error_of, find_run, form_of
from apps.evals.models import EvalRun, LatencyMeasurement
from apps.promotion import preparation
from workers.lib.typed import Text, json_schema

Adapters = Literal[tuple(LatencyMeasurement.Adapters.values)]  # type: ignore[valid-type]


class Prepare(Struct, forbid_unknown_fields=True, kw_only=True):
    """Evaluations by id. `general_tasks`: how many tasks of the general split to run. `adapters`:
    how latency is measured.
    """

    baseline: Text
    candidate: Text
    general_tasks: Annotated[int, Meta(ge=1, le=5000)] = preparation.GENERAL_TASKS
    adapters: Adapters = "merged"


PART = {
    "type": "object",
    "required": ["title", "state", "jobs"],
    "properties": {
        "title": {"type": "string"},
        "state": {"enum": ["missing", *JobState.values]},
        "jobs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "kind": {"enum": ["evaluation", "latency"]},
                    "name": {"type": "string"},
                    "state": {"enum": JobState.values},
                    "done": {"type": "integer"},
                    "total": {"type": "integer"},
                    "error": {"type": "string"},
                },
            },
        },
    },
}
PREPARATION = {
    "type": "object",
    "required": ["baseline", "candidate", "ready", "parts", "problems"],
    "properties": {
        "baseline": {"type": "string", "format": "uuid"},
        "candidate": {"type": "string", "format": "uuid"},
        "ready": {"type": "boolean", "description": "Everything has been measured"},
        "parts": {"type": "array", "items": PART},
        "problems": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Of the POST: what cannot be measured",
        },
    },
}
EXAMPLE = OpenApiExample(
    "Two evaluations",
    {
        "baseline": "9e0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
        "candidate": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
    },
    request_only=True,
)


@extend_schema(
    methods=["GET"],
    operation_id="v1_gate_reports_preparation",
    responses=described({200: PREPARATION}, 404),
    parameters=[
        OpenApiParameter("baseline", str, required=True),
        OpenApiParameter("candidate", str, required=True),
    ],
    description=(
        "The additional measurements the gate needs for two evaluations (latency, regression tasks,"
        " general capability) and their progress. Poll until `ready`."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_gate_reports_prepare",
    request={JSON: json_schema(Prepare)},
    responses=described({200: PREPARATION}, 400, 403, 404, 413),
    examples=[EXAMPLE],
    description="Queues missing and failed measurements, and lists what cannot be measured.",
)
@api(GET=RESULT, POST=RUN)
def pair(request: Request) -> Response:
    if request.method == "GET":
        query = request.query_params
        runs = [find_run(request, query[name]) for name in ("baseline", "candidate")]
        return Response(as_json(request, *runs, problems=[]))
    by, asked = member_of(request).user, form_of(request, Prepare)
    baseline, candidate = find_run(request, asked.baseline), find_run(request, asked.candidate)
    problems = preparation.prepare(
        baseline=baseline,
        candidate=candidate,
        by=by,
        general_tasks=asked.general_tasks,
        adapters=asked.adapters,
    )
    return Response(as_json(request, baseline, candidate, problems=problems))


def as_json(
    request: Request, baseline: EvalRun, candidate: EvalRun, *, problems: list[str]
) -> dict[str, Any]:
    parts = preparation.parts(baseline, candidate)
    return {
        "baseline": str(baseline.pk),
        "candidate": str(candidate.pk),
        "ready": all(part.state == JobState.SUCCEEDED for part in parts),
        "parts": [
            {
                "title": part.title,
                "state": part.state,
                "jobs": [job_json(request, job, candidate) for job in part.jobs],
            }
            for part in parts
        ],
        "problems": problems,
    }


def job_json(request: Request, job: Any, candidate: EvalRun) -> dict[str, Any]:
    """Latency is measured on the candidate's own tasks."""
    kind, split = (
        ("evaluation", job.split) if isinstance(job, EvalRun) else ("latency", candidate.split)
    )
    found = {name: getattr(job, name) for name in ("name", "state", "done", "total")}
    return {"id": str(job.pk), "kind": kind} | found | {"error": error_of(request, job, split)}
