"""Lineage over REST: back from a version to production, forward from a trajectory or a task to
versions.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.http import uuid_of
from apps.core.openapi import described
from apps.core.routes import api
from apps.core.scopes import READABLE
from apps.evals.lookups import find_version
from apps.evals.models import Task
from apps.training.lineage import (
    Learner,
    count,
    datasets_behind,
    jobs_behind,
    learners_of_task,
    learners_of_trajectory,
)
from apps.training.models import PromptSearch
from apps.trajectories.actions.store import find

STRING = {"type": "string"}
MADE_BY = {
    "type": ["object", "null"],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "kind": STRING,
        "name": STRING,
        "eval_set": STRING,
        "dataset_digest": STRING,
        "tasks": {"type": "integer"},
        "trajectories": {"type": "integer"},
    },
}
LINEAGE = {
    "type": "object",
    "properties": {
        "version": STRING,
        "chain": {
            "type": "array",
            "description": (
                "The version and its ancestors, nearest first, with the job that created each"
            ),
            "items": {
                "type": "object",
                "properties": {"version": STRING, "kind": STRING, "made_by": MADE_BY},
            },
        },
        "trajectories": {
            "type": "object",
            "description": "For the whole chain: {n, more, url}; url lists them",
            "properties": {"n": {"type": "integer"}, "more": {"type": "boolean"}, "url": STRING},
        },
        "learned_by": {
            "type": "array",
            "description": (
                "For a trajectory or a task, newest first: the job, the version it "
                "created, and versions derived from that"
            ),
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "kind": STRING,
                    "name": STRING,
                    "state": STRING,
                    "eval_set": STRING,
                    "model_version": {"type": ["string", "null"]},
                    "derived": {"type": "array", "items": STRING},
                },
            },
        },
    },
}


@extend_schema(
    operation_id="v1_lineage",
    responses=described({200: LINEAGE}, 400, 404),
    parameters=[
        OpenApiParameter("version", str, description="A model version, such as support-v4"),
        OpenApiParameter("trajectory", str, description="The id of a trajectory, yours"),
        OpenApiParameter("task", str, description="The id of a task"),
    ],
    description=(
        "With `version`: what it and its ancestors learned from; with `trajectory` or `task`: what"
        " learned from it. Exactly one of the three. The trajectories themselves:"
        " `/api/v1/trajectories/?trained=support-v4`."
    ),
)
@api(GET=READABLE)
def lineage(request: Request) -> Response:
    asked = {
        name: request.query_params[name]
        for name in ("version", "trajectory", "task")
        if request.query_params.get(name)
    }
    if len(asked) != 1:
        raise ValidationError({"path": "version", "error": "send one of version, trajectory, task"})
    project = request.auth.project
    if name := asked.get("version"):
        return Response(backwards(request, name))
    if name := asked.get("trajectory"):
        row = find(project, name)
        if row is None:
            raise NotFound("No trajectory of this project has this id.")
        return Response(
            {"learned_by": [learner_json(one) for one in learners_of_trajectory(row.pk)]}
        )
    task = Task.objects.filter(project=project, pk=uuid_of(asked["task"])).only("pk").first()
    if task is None:
        raise NotFound("No task of this project has this id.")
    return Response({"learned_by": [learner_json(one) for one in learners_of_task(task.pk)]})


def backwards(request: Request, name: str) -> dict[str, Any]:
    version = find_version(request, name)
    n, more = count(datasets_behind(version))
    page = reverse("trajectories:list", args=[request.auth.project.slug])
    return {
        "version": str(version),
        "chain": [
            {"version": str(node), "kind": node.kind, "made_by": job and job_json(job)}
            for node, job in jobs_behind(version)
        ],
        "trajectories": {
            "n": n,
            "more": more,
            "url": request.build_absolute_uri(f"{page}?{urlencode({'trained': str(version)})}"),
        },
    }


def job_json(job: Any) -> dict[str, Any]:
    kind = "prompt search" if isinstance(job, PromptSearch) else job.method
    return {
        "id": str(job.pk),
        "kind": kind,
        "name": job.name,
        "eval_set": str(job.dataset.eval_set),
        "tasks": job.dataset.size,
        "dataset_digest": job.dataset.digest,
        "trajectories": count([job.dataset_id])[0],
    }


def learner_json(learner: Learner) -> dict[str, Any]:
    return {
        "id": str(learner.job.pk),
        "kind": learner.kind,
        "name": learner.job.name,
        "state": learner.job.state,
        "eval_set": str(learner.job.dataset.eval_set),
        "model_version": str(learner.version) if learner.version else None,
        "derived": [str(heir) for heir in learner.heirs],
    }
