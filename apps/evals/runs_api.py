"""Evaluations over REST: start, follow and stop one, and read its samples. The key determines the
project.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.bus import Question, ask
from apps.core.openapi import described, page
from apps.core.query import LARGEST_KEY, number_of, whole_number
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import RESULT, RUN
from apps.evals import answers_api, samples_api, traces
from apps.evals import runs_schema as schema
from apps.evals.announcing import facts_of
from apps.evals.holdout.view_log import record_output_view
from apps.evals.lookups import (
    LIMIT,
    error_of,
    find_run,
    may_see,
    needs_right,
)
from apps.evals.models import EvalRun
from apps.registry.engines import in_words


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
