"""Evaluations over REST: start, follow and stop one, and read its samples. The key determines the
project.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import jobs
from apps.core.bus import Question, ask
from apps.core.models import JobState
from apps.core.openapi import JSON, described, page
from apps.core.query import LARGEST_KEY, number_of, whole_number
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import RESULT, RUN
from apps.evals import actions, answers, answers_api, samples_api, traces
from apps.evals import runs_schema as schema
from apps.evals.announcing import facts_of
from apps.evals.holdout.view_log import record_output_view
from apps.evals.lookups import (
    CURSOR,
    LIMIT,
    error_of,
    filtered,
    find_environment,
    find_run,
    find_set,
    find_version,
    form_of,
    listed,
    may_see,
    needs_right,
    runs_of,
)
from apps.evals.models import EvalRun, Split
from apps.evals.submission import submit_eval
from apps.registry.actions import ModelError, register_agent
from apps.registry.engines import AUTO, LIMITS, in_words
from apps.registry.models import Reach

BOUNDS = (*LIMITS, "timeout_s", "at_once")  # limits on what an evaluation uses
FILTERS = {
    "state": None,
    "split": None,
    "eval_set": find_set,
    "environment": find_environment,
    "model_version": find_version,
}


@shows("scores of a model on the hold-out, once it has run, with the right")
@extend_schema(
    methods=["GET"],
    operation_id="v1_eval_runs_list",
    responses=described({200: page(schema.RUN)}, 400, 404),
    description="Evaluations, newest first.",
    parameters=[
        OpenApiParameter("state", enum=JobState.values),
        OpenApiParameter("split", enum=Split.values),
        OpenApiParameter("eval_set", str, description="id or name@version"),
        OpenApiParameter("environment", str, description="slug@version"),
        OpenApiParameter("model_version", str, description="such as support-v3"),
        CURSOR,
        LIMIT,
    ],
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_eval_runs_start",
    request={JSON: schema.START},
    responses=described({200: schema.RUN, 201: schema.RUN}, 400, 403, 404, 409, 413),
    examples=[schema.START_EXAMPLE, schema.AGENT_EXAMPLE, schema.RUN_EXAMPLE],
    description=(
        "Queues an evaluation of a model version; poll it until its state is final. With `agent`"
        " instead, you run the agent yourself: get the tasks, send the answers (`/tasks/`,"
        " `/samples/`), and they are scored here; 200 if the same evaluation is already running. On"
        " a hold-out this requires a key with access to hold-outs and counts as a view."
    ),
)
@api(GET=RESULT, POST=RUN)
def collection(request: Request) -> Response:
    if request.method == "POST":
        return _start(request)
    return listed(request, filtered(request, runs_of(request), FILTERS), as_json)


def _start(request: Request) -> Response:
    asked = form_of(request, schema.StartRun)
    if (asked.model_version is None) == (asked.agent is None):
        raise ValidationError({"path": "model_version", "error": "send either this or “agent”"})
    split = Split(asked.split)
    needs_right(request, split)
    given: dict[str, Any] = {
        "project": request.auth.project,
        "eval_set": find_set(request, asked.eval_set),
        "environment": find_environment(request, asked.environment),
        "split": split,
        "samples_per_task": asked.samples_per_task,
        "seed": asked.seed,
        "by": request.auth.created_by,
        "viewer": request.auth,
    }
    try:
        with transaction.atomic():  # an agent that cannot be evaluated is not registered either
            run, new = _submitted(request, asked, given)
    except ModelError as error:
        raise ValidationError({"path": "agent", "error": str(error)}) from error
    return Response(as_json(request, run), status=201 if new else 200)


def _submitted(
    request: Request, asked: schema.StartRun, given: dict[str, Any]
) -> tuple[EvalRun, bool]:
    """The evaluation, and whether it is new. Raises EvalSetError, ModelError, NotFound."""
    if asked.agent is None:
        against = None if asked.stop_against is None else find_run(request, asked.stop_against)
        version = find_version(request, asked.model_version or "")
        stop = {"stop_against": against, "stop_channel": asked.stop_channel}
        chosen = {name: getattr(asked, name) for name in BOUNDS}
        return (
            submit_eval(model_version=version, engine=asked.engine, **stop, **chosen, **given),
            True,
        )
    if asked.stop_against is not None:
        raise actions.EvalSetError("Evaluations of agents that run elsewhere cannot stop early.")
    for name in BOUNDS:
        if getattr(asked, name) is not None:
            raise ValidationError(
                {
                    "path": name,
                    "error": "does not apply to an agent that runs elsewhere; leave it out",
                }
            )
    if asked.engine != AUTO:
        raise ValidationError(
            {
                "path": "engine",
                "error": "does not apply to an agent that runs elsewhere; leave it out",
            }
        )
    agent = register_agent(
        project=given["project"],
        name=asked.agent.name,
        agent_version=asked.agent.version,
        by=given["by"],
        reached_by=Reach(asked.agent.reached_by),
    )
    return answers.open_run(agent=agent, **given)


class MoreOfRun(Question[dict[str, Any]]):
    """Fields that other layers add to an evaluation's answer."""

    request: Request
    run: EvalRun


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_eval_runs_read",
    responses=described({200: schema.RUN}, 404),
    examples=[schema.RUN_EXAMPLE],
    parameters=[
        OpenApiParameter(
            "against",
            str,
            description=(
                "A channel, such as “production”: adds `gate`, the "
                "comparison with the version live there, in the format of a gate report"
            ),
        )
    ],
    description="State and progress, and the metrics with their intervals once finished.",
)
@api(GET=RESULT)
def item(request: Request, pk: UUID) -> Response:
    run = find_run(request, pk)
    found = as_json(request, run)
    if run.is_answered_elsewhere:
        found["unused_traces"] = traces.unused(run, with_reasons=may_see(request, run.split))
    for fields in ask(MoreOfRun(request, run)):
        found |= fields
    return Response(found)


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_eval_runs_cancel",
    request=None,
    responses=described({200: schema.RUN}, 403, 404, 409),
    description=(
        "Stops an evaluation; samples so far are kept. On a hold-out this requires a key with"
        " access to hold-outs, like starting it."
    ),
)
@api(POST=RUN)
def cancel(request: Request, pk: UUID) -> Response:
    run = find_run(request, pk)
    needs_right(request, run.split)
    if not jobs.cancel(run, by=request.auth.created_by):
        return Response({"detail": "This evaluation has already finished."}, status=409)
    return Response(as_json(request, find_run(request, pk)))


@shows("outputs and scores on held-out tasks, with the right")
@extend_schema(
    methods=["GET"],
    operation_id="v1_eval_runs_samples",
    responses=described({200: page(schema.SAMPLE)}, 400, 403, 404),
    parameters=[
        *samples_api.FILTERS,
        OpenApiParameter(
            "cursor", whole_number(0, LARGEST_KEY, 0), description="`next` of the previous page"
        ),
        LIMIT,
    ],
    description=(
        "Outputs and scores, in the order they were stored. On a hold-out this requires a key with"
        " access to hold-outs and counts as a view."
    ),
)
@answers_api.SEND
@api(GET=RESULT, POST=RUN)
def samples(request: Request, pk: UUID) -> Response:
    run = find_run(request, pk)
    needs_right(request, run.split)
    if request.method == "POST":
        return answers_api.send(request, run)
    limit, cursor = number_of(request, "limit"), number_of(request, "cursor")
    found = list(
        samples_api.filtered(request, run).filter(pk__gt=cursor).order_by("pk")[: limit + 1]
    )
    if found:
        record_output_view(run, by=request.auth)
    following = str(found[limit - 1].pk) if len(found) > limit else None
    return Response(
        {
            "results": [samples_api.sample_json(sample) for sample in found[:limit]],
            "next": following,
        }
    )


# What is told


def as_json(request: Request, run: EvalRun) -> dict[str, Any]:
    return facts_of(run) | {
        "verifier": str(run.environment.verifier),
        "agent": answers_api.agent_json(run),
        "answers": answers_api.answers_json(run),
        "seed": run.spec.get("seed", 0),
        "engine": in_words(run.spec.get("engine") or {}, run.model_version),
        "spent": run.result.get("spent"),
        "label": run.label,
        "error": error_of(request, run, run.split),
        "url": request.build_absolute_uri(reverse("evals:run", args=[run.project.slug, run.pk])),
    }
