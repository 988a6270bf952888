"""The outputs of a run at its checkpoints, over REST: the same tasks side by side."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import UNSET, Meta, Struct, UnsetType
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import JSON, NUMBER, described
from apps.core.query import number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import MANAGED, RESULT
from apps.evals.lookups import LIMIT, form_of
from apps.training import judged_outputs, outputs
from apps.training.models import Rollout
from apps.training.runs_api import INTEGER, OBJECT, STRING, find
from workers.lib.typed import Seed, json_schema

OUTPUT = {
    "type": "object",
    "required": ["id", "reward", "output"],
    "properties": {
        "id": INTEGER | {"description": "Of the rollout"},
        "reward": NUMBER,
        "success": {"type": "boolean"},
        "masked": {"type": "boolean"},
        "components": OBJECT,
        "output": STRING,
        "mean_reward": NUMBER,
        "passed": INTEGER,
        "samples": INTEGER,
        "judge": {
            "type": ["object", "null"],
            "description": "Verdict of the LLM judge, if it read this output",
            "properties": {"passed": {"type": "boolean"}, "reason": STRING},
        },
    },
}
OUTPUTS = {
    "type": "object",
    "required": ["steps", "results", "next"],
    "properties": {
        "steps": {
            "type": "array",
            "items": INTEGER,
            "description": "At which the policy was sampled",
        },
        "baseline": {"type": ["integer", "null"]},
        "than": {"type": ["integer", "null"]},
        "at": {"type": ["integer", "null"]},
        "changes": {
            "type": "object",
            "description": "How many tasks got better, worse, other or stayed the same",
        },
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "task": {"type": "string", "format": "uuid"},
                    "key": STRING,
                    "delta": NUMBER,
                    "change": {"enum": ["", *outputs.CHANGES]},
                    "outputs": {
                        "type": "object",
                        "description": "By step",
                        "additionalProperties": OUTPUT,
                    },
                },
            },
        },
        "next": {"type": ["integer", "null"], "description": "`offset` of the next page"},
    },
}


@extend_schema(
    operation_id="v1_training_runs_outputs",
    responses=described({200: OUTPUTS}, 400, 404),
    parameters=[
        OpenApiParameter(
            "at",
            whole_number(0, 2**31 - 1),
            description="A step; the last one where it is not given",
        ),
        OpenApiParameter(
            "than",
            whole_number(0, 2**31 - 1),
            description="The step it is compared with; the checkpoint before where it is not given",
        ),
        OpenApiParameter("change", enum=list(outputs.CHANGES)),
        OpenApiParameter("q", str, description="Words of the task's key, its request or an output"),
        OpenApiParameter("offset", whole_number(0, 10**9, 0)),
        LIMIT,
    ],
    description=(
        "The policy's outputs for the same tasks at the start and at two checkpoints, largest"
        " reward changes first."
    ),
)
@api(GET=RESULT)
def compare(request: Request, pk: UUID) -> Response:
    run = find(request, pk)
    filters = outputs.Filters.of(request.query_params)
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    chosen = outputs.choice_for(run, filters)
    if chosen is None:
        empty: dict[str, Any] = dict.fromkeys(("baseline", "than", "at", "next"))
        return Response(empty | {"steps": [], "changes": {}, "results": []})
    rows, counts = outputs.rows_of(run, chosen, filters)
    shown = rows[offset : offset + limit]
    outputs.fill(shown)
    judge = judged_outputs.judge_says(run)
    return Response(
        {
            "steps": chosen.steps,
            "baseline": chosen.baseline,
            "than": chosen.than,
            "at": chosen.at,
            "changes": counts,
            "results": [row_json(row, judge) for row in shown],
            "next": offset + limit if offset + limit < len(rows) else None,
        }
    )


class SendOutputs(Struct, forbid_unknown_fields=True, kw_only=True):
    """`rollout`: one output; else a seeded sample of `n` of those at `step` (the last one)."""

    step: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    rollout: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType = UNSET
    n: Annotated[int, Meta(ge=1, le=200)] = judged_outputs.SENT
    seed: Seed = 0


@extend_schema(
    operation_id="v1_training_runs_outputs_send",
    request={JSON: json_schema(SendOutputs)},
    responses=described(
        {
            201: {
                "type": "object",
                "properties": {"review": INTEGER, "sent": INTEGER, "url": STRING},
            }
        },
        400,
        403,
        404,
        409,
        413,
    ),
    description=(
        "Sends outputs of the policy to the reward review queue, where people judge them blind. The"
        " verdicts become a metric of the run (`review/…`) and feed the alarm `judge_gap`; they do"
        " not affect the training lock."
    ),
)
@api(POST=MANAGED)
def send(request: Request, pk: UUID) -> Response:
    run, by = find(request, pk), member_of(request).user
    asked = form_of(request, SendOutputs)
    given = {"step": asked.step, "number": asked.rollout, "n": asked.n, "seed": asked.seed}
    review, new = judged_outputs.send(
        run=run, by=by, **{name: value for name, value in given.items() if value is not UNSET}
    )
    return Response(
        {
            "review": review.pk,
            "sent": new,
            "url": request.build_absolute_uri(review.get_absolute_url()),
        },
        status=201,
    )


def row_json(row: outputs.Row, judge: dict[int, tuple[bool, str]]) -> dict[str, Any]:
    said = {
        step: output_json(sample, row.cells[step], judge.get(sample.pk))
        for step, sample in (row.shown or {}).items()
    }
    return {
        "task": str(row.task),
        "key": row.key,
        "delta": row.delta,
        "change": row.change,
        "outputs": said,
    }


def output_json(
    sample: Rollout, cell: outputs.Cell, judge: tuple[bool, str] | None = None
) -> dict[str, Any]:
    return {
        "id": sample.pk,
        "reward": sample.reward,
        "success": sample.success,
        "masked": sample.masked,
        "components": sample.components,
        "output": sample.output,
        "mean_reward": cell.reward,
        "passed": cell.passed,
        "samples": cell.n,
        "judge": judge and {"passed": judge[0], "reason": judge[1]},
    }
