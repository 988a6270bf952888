"""Classification over REST: the number of waiting runs, the newest job, and starting one. The key
determines the project.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.models import JobState, Project
from apps.core.openapi import described
from apps.core.routes import api
from apps.core.scopes import MANAGED, READABLE
from apps.failures import classify_job
from apps.failures.models import Classification

JOB = {
    "type": ["object", "null"],
    "description": (
        "The newest job. New trajectories are classified without one, seconds after they arrive"
    ),
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "state": {"enum": JobState.values},
        "done": {"type": "integer"},
        "total": {"type": "integer"},
        "error": {"type": "string"},
        "result": {
            "type": "object",
            "description": "`looked`: trajectories, `found`: failures among them",
        },
        "created_at": {"type": "string", "format": "date-time"},
        "finished_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
STATUS = {
    "type": "object",
    "required": ["waiting", "job"],
    "properties": {
        "waiting": {
            "type": "integer",
            "description": "Trajectories that a classification would process now",
        },
        "job": JOB,
    },
}


@extend_schema(
    methods=["GET"],
    operation_id="v1_classification_read",
    responses=described({200: STATUS}, 403),
    description="The number of trajectories waiting for classification, and the newest job.",
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_classification_start",
    request=None,
    responses=described({202: STATUS}, 403, 409),
    description=(
        "Classifies new and changed trajectories now, or all of them if the rules have changed"
        " since the last pass. If a job is already running, that job is returned."
    ),
)
@api(GET=READABLE, POST=MANAGED)
def classification(request: Request) -> Response:
    project = request.auth.project
    if request.method == "POST":
        job = classify_job.start(project=project, by=member_of(request).user)
        return Response(as_json(project, job), status=202)
    return Response(as_json(project, project.classifications.first()))


def as_json(project: Project, job: Classification | None) -> dict[str, Any]:
    names = ("state", "done", "total", "error", "result", "created_at", "finished_at")
    shown = {"id": str(job.pk)} | {name: getattr(job, name) for name in names} if job else None
    return {"waiting": classify_job.count(project), "job": shown}
