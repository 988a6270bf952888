"""The API for workers that run an agent which waits for work (docs/agents.md): which jobs have
rollouts for it, and where they are given out.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.models import JobState
from apps.core.openapi import described
from apps.core.routes import api, shows
from apps.core.scopes import RUN
from apps.evals.holdout.view_log import record_seen
from apps.evals.lookups import may_see
from apps.evals.models import EvalRun, Split
from apps.evals.references import agent_named
from apps.registry.harness import playable, work_address
from apps.registry.models import ModelVersion, Reach
from apps.training.models import TrainingRun

STRING = {"type": "string"}
WORK = {
    "type": "object",
    "required": ["agent", "jobs", "withheld"],
    "properties": {
        "agent": STRING,
        "jobs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "kind", "name", "url"],
                "properties": {
                    "id": {"type": "string", "format": "uuid"},
                    "kind": {"enum": ["evaluation", "training"]},
                    "name": STRING,
                    "url": {
                        "type": "string",
                        "format": "uri",
                        "description": "Where its rollouts are given out, without a key",
                    },
                },
            },
        },
        "withheld": {
            "type": "integer",
            "description": "Evaluations of hold-outs, which this key may not see",
        },
    },
}


@shows("the held-out tasks, to workers with the right")
@extend_schema(
    operation_id="v1_work",
    responses=described({200: WORK}, 400, 403, 404),
    parameters=[
        OpenApiParameter(
            "agent", str, required=True, description="name@version of an agent that waits for work"
        )
    ],
    description=(
        "The running evaluations and training runs whose episodes are played by an agent that waits"
        ' for work. POST {"wait_s": 20} to a job\'s `url` gives out a rollout. Held-out'
        " evaluations require a key with access to hold-outs, and their tasks count as viewed by"
        " it."
    ),
)
@api(GET=RUN)
def work(request: Request) -> Response:
    agent = _agent(request)
    jobs, withheld = list[dict[str, Any]](), 0
    spec = {"harness": {"agent": agent.pk}}
    for kind, model in (("evaluation", EvalRun), ("training", TrainingRun)):
        running = model.objects.filter(
            project=agent.project_id, state=JobState.RUNNING, spec__contains=spec
        )
        for job in running.order_by("created_at"):
            if isinstance(job, EvalRun) and not may_see(request, job.split):
                withheld += 1
            elif url := work_address(job):
                _record(job, agent, request.auth)
                jobs.append({"id": str(job.pk), "kind": kind, "name": job.name, "url": url})
    return Response({"agent": str(agent), "jobs": jobs, "withheld": withheld})


def _agent(request: Request) -> ModelVersion:
    rows = playable(request.auth.project.model_versions).filter(reached_by=Reach.PULL)
    found = agent_named(rows, request.query_params.get("agent", ""))
    if found is None:
        raise NotFound(
            "No agent of this project that waits for work has this name@version (`agent`). Register"
            " it under Models."
        )
    return found


def _record(job: EvalRun | TrainingRun, agent: ModelVersion, key: Any) -> None:
    """Whoever has the address gets the tasks."""
    if isinstance(job, EvalRun) and job.split == Split.HOLDOUT:
        with transaction.atomic():
            detail = f"given to a worker of {agent}"
            record_seen(job.project, job.eval_set.tasks.all(), by=key, detail=detail)
