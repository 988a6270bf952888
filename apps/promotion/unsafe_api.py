"""Outputs with a new kind of unsafe action that a gate report lists, by API: read and review
them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described, sent, told
from apps.core.routes import api, shows
from apps.core.scopes import MANAGED, RESULT
from apps.evals.holdout.view_log import record_output_view
from apps.evals.lookups import form_of, needs_right
from apps.promotion.conditions import MAX_REASON
from apps.promotion.models import GateReport
from apps.promotion.reports import find_report
from apps.promotion.unsafe_outputs import NewKindOutput, listed_in, review_outputs
from workers.lib.typed import json_schema

OUTPUT = {
    "type": "object",
    "required": ["id", "task", "kinds", "state", "output"],
    "properties": {
        "id": {"type": "string", "description": "The sample, for a review"},
        "task": {"type": "string"},
        "split": {"type": "string"},
        "kinds": {
            "type": "array",
            "items": {"type": "string"},
            "description": "That the baseline never shows, or shows less often",
        },
        "state": {
            "enum": ["to review", "accepted", "unsafe"],
            "description": "By the reviews of now",
        },
        "output": {"type": "string"},
        "messages": {"type": "array", "items": {"type": "object"}},
        "details": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What the verifier found wrong",
        },
        "reviewed_by": {"type": ["string", "null"]},
        "reason": {"type": ["string", "null"]},
    },
}
LIST = {
    "type": "object",
    "required": ["results"],
    "properties": {"results": {"type": "array", "items": OUTPUT}},
}
EXAMPLE = {
    "results": [
        {
            "id": "48213",
            "task": "refund-17",
            "split": "holdout",
            "kinds": ["delete_account"],
            "state": "to review",
            "output": "I have deleted your account.",
            "messages": [],
            "details": ["unsafe: delete_account"],
            "reviewed_by": None,
            "reason": None,
        }
    ]
}
MOST = 1_000


class Review(Struct, forbid_unknown_fields=True, kw_only=True):
    """`accepted`: these outputs are not unsafe; `unsafe`: they are, and the next comparison rejects
    the candidate.
    """

    outputs: Annotated[list[str], Meta(min_length=1, max_length=MOST)]
    decision: Literal["accepted", "unsafe"]
    reason: Annotated[str, Meta(max_length=MAX_REASON, pattern=r"\S")]


REVIEW = {
    "outputs": ["48213"],
    "decision": "accepted",
    "reason": "The user asked for it in the first message",
}


@shows("outputs and scores on held-out tasks, with the right")
@extend_schema(
    methods=["GET"],
    operation_id="v1_gate_reports_unsafe_outputs",
    responses=described({200: LIST}, 403, 404),
    examples=[told("One to review", EXAMPLE)],
    description=(
        "The outputs of the candidate with a kind of unsafe action that the baseline never shows, "
        "or shows less often."
        " On a hold-out this requires a key with access to hold-outs and counts as a view."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_gate_reports_unsafe_outputs_review",
    request={JSON: json_schema(Review)},
    responses=described({200: LIST}, 400, 403, 404, 409),
    examples=[sent("Not unsafe", REVIEW), told("Reviewed", EXAMPLE, "200")],
    description=(
        "Records a review of outputs that this key has read before (GET). Needs the role that may"
        " promote in the channel, and a policy that allows API keys. The report does not change:"
        " compare again."
    ),
)
@api(GET=RESULT, POST=MANAGED)
def outputs(request: Request, pk: UUID) -> Response:
    report = find_report(request.auth.project, pk)
    needs_right(request, report.candidate.split)
    if request.method == "POST":
        asked = form_of(request, Review)
        review_outputs(
            report=report,
            samples=asked.outputs,
            accepted=asked.decision == "accepted",
            reason=asked.reason,
            by=request.auth.created_by,
            key=request.auth,
        )
    else:
        record_output_view(report.candidate, by=request.auth)
    return Response({"results": outputs_json(report)})


def outputs_json(report: GateReport) -> list[dict[str, Any]]:
    return [_json(row) for row in listed_in(report, MOST)]


def _json(row: NewKindOutput) -> dict[str, Any]:
    sample, review = row.sample, row.review
    return {
        "id": str(sample.pk),
        "task": sample.task_key,
        "split": sample.run.split,
        "kinds": row.kinds,
        "state": row.state,
        "output": sample.output,
        "messages": sample.messages,
        "details": sample.details,
        "reviewed_by": review.by_name if review else None,
        "reason": review.reason if review else None,
    }
