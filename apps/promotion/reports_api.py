"""Gate reports over REST: compare two evaluations, list the reports, read one. The key determines
the project.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.bus import on
from apps.core.openapi import JSON, NUMBER, described, page
from apps.core.paging import listed
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import RESULT, RUN
from apps.evals.holdout.view_log import record_output_view
from apps.evals.lookups import CURSOR, LIMIT, filtered, find_run, find_version, form_of, may_see
from apps.evals.models import EvalRun
from apps.evals.runs_api import MoreOfRun
from apps.promotion import actions
from apps.promotion.announcing import outcome
from apps.promotion.models import Channel, GateReport, Verdict
from apps.promotion.policies import PRODUCTION, channel_of, find_channel, policy_of
from apps.promotion.reports import find_report, reports_of
from apps.promotion.signing import signed_document
from workers.lib.typed import Text, json_schema

CHECK = {
    "type": "object",
    "required": ["name", "title", "state", "required", "sentence"],
    "properties": {
        "name": {"type": "string"},
        "title": {"type": "string"},
        "state": {"enum": ["better", "same", "worse", "inconclusive", "not judged"]},
        "required": {"type": "boolean", "description": "Whether the verdict depends on it"},
        **dict.fromkeys(("baseline", "candidate", "difference", "low", "high"), NUMBER),
        "n": {"type": "integer"},
        "sentence": {"type": "string"},
        "decides": {"type": "string", "description": "What would resolve an inconclusive check"},
    },
}
VERDICT = {
    "enum": [*Verdict.values, None],
    "description": "Null if the two cannot be compared; see `summary`",
}
REPORT = {
    "type": "object",
    "required": [
        "verdict",
        "summary",
        "checks",
        "channel",
        "baseline",
        "candidate",
        "id",
        "url",
        "created_at",
    ],
    "properties": {
        "id": {
            "type": ["string", "null"],
            "format": "uuid",
            "description": "Null if no report is stored",
        },
        "verdict": VERDICT,
        "summary": {"type": "string", "description": "The reason, as a sentence"},
        "checks": {"type": "array", "items": CHECK},
        "regressed": {
            "type": "integer",
            "description": "Tasks that went from mostly passing to mostly failing",
        },
        "improved": {"type": "integer"},
        "outputs_to_review": {
            "type": "integer",
            "description": (
                "Outputs with a kind of unsafe action that needs review and that nobody has"
                " reviewed (`unsafe-outputs/`). With any of them the verdict is at best"
                " “inconclusive”"
            ),
        },
        "tasks": {"type": "integer"},
        "comparison": {"type": "integer", "description": "Which one it is on these tasks, from 1"},
        "channel": {"type": "string"},
        "policy_version": {"type": "integer"},
        "baseline": {"type": ["string", "null"], "format": "uuid", "description": "The evaluation"},
        "baseline_model": {"type": ["string", "null"]},
        "candidate": {"type": "string", "format": "uuid"},
        "candidate_model": {"type": "string"},
        "url": {"type": ["string", "null"]},
        "created_at": {"type": ["string", "null"], "format": "date-time"},
    },
}
SIGNED = {
    "type": "object",
    "required": [*REPORT["required"], "document", "signature"],
    "properties": (
        REPORT["properties"]
        | {
            "document": {"type": ["object", "null"]},
            "signature": {"type": ["string", "null"]},
        }
    ),
}


class Ask(Struct, forbid_unknown_fields=True, kw_only=True):
    """Evaluations by id. Without `baseline` the candidate is compared with what `channel` runs
    now.
    """

    candidate: Text
    baseline: Text | None = None
    channel: Text = PRODUCTION


EXAMPLE = OpenApiExample(
    "Against what is live",
    value={"candidate": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11", "channel": "production"},
    request_only=True,
)
ANSWER = OpenApiExample(
    "A promotion",
    value={
        "id": "0d3f0c52-9a51-4b1e-8a4c-0a3d5f2f7c11",
        "verdict": "promote",
        "summary": "Better: success rose by 12.5 points. No required check is worse.",
        "checks": [
            {
                "name": "success",
                "title": "Success",
                "state": "better",
                "required": True,
                "baseline": 0.62,
                "candidate": 0.745,
                "difference": 0.125,
                "low": 0.05,
                "high": 0.2,
                "n": 120,
                "sentence": "Success rose: +0.125 [+0.050, +0.200] over 120 tasks.",
                "decides": "",
            }
        ],
        "regressed": 1,
        "improved": 16,
        "outputs_to_review": 0,
        "tasks": 120,
        "comparison": 2,
        "channel": "production",
        "policy_version": 0,
        "baseline": "9e0c…",
        "baseline_model": "support-v3",
        "candidate": "5f0c…",
        "candidate_model": "support-v4",
        "url": "https://flywheel.example/p/support/models/reports/0d3f0c52/",
        "created_at": "2026-11-22T08:00:00Z",
    },
    response_only=True,
)


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    methods=["GET"],
    operation_id="v1_gate_reports_list",
    responses=described({200: page(REPORT)}, 400, 404),
    parameters=[
        OpenApiParameter("verdict", enum=Verdict.values),
        OpenApiParameter("channel", str),
        OpenApiParameter("model_version", str, description="of the candidate, such as support-v3"),
        CURSOR,
        LIMIT,
    ],
    description=(
        "Gate reports, newest first. The tasks that changed are only listed in the report itself."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_gate_reports_make",
    request={JSON: json_schema(Ask)},
    responses=described({201: REPORT}, 400, 404, 409, 413),
    examples=[EXAMPLE, ANSWER],
    description=(
        "Compares two evaluations under a channel's policy, then signs and stores the gate report."
        " 409 with the reason if they cannot be compared."
    ),
)
@api(GET=RESULT, POST=RUN)
def collection(request: Request) -> Response:
    if request.method == "POST":
        return _make(request)
    filters = {
        "verdict": None,
        "channel": _channel,
        "candidate__model_version": find_version,
    }
    return listed(request, filtered(request, reports_of(request.auth.project), filters), as_json)


def _make(request: Request) -> Response:
    asked = form_of(request, Ask)
    candidate, channel = find_run(request, asked.candidate), _channel(request, asked.channel)
    baseline = (
        find_run(request, asked.baseline)
        if asked.baseline
        else actions.live_baseline(candidate, channel)
    )
    row = actions.make_gate_report(
        baseline=baseline, candidate=candidate, by=request.auth.created_by, channel=channel
    )
    return Response(as_json(request, row), status=201)


@shows("which held-out tasks moved, with the right")
@extend_schema(
    operation_id="v1_gate_reports_read",
    responses=described({200: SIGNED}, 404),
    description=(
        "A gate report: verdict, checks and reason, plus the signed `document` and its `signature`."
        " The document lists the tasks that changed: on a hold-out this requires a key with access"
        " to hold-outs (otherwise both are null) and counts as a view."
    ),
)
@api(GET=RESULT)
def item(request: Request, pk: UUID) -> Response:
    row = find_report(request.auth.project, pk)
    if not may_see(request, row.candidate.split):
        return Response(as_json(request, row) | {"document": None, "signature": None})
    record_output_view(row.candidate, by=request.auth)
    return Response(as_json(request, row) | signed_document(row))


def _channel(request: Request, name: str) -> Channel:
    """Raises NotFound. “production” is created when it is first requested."""
    project = request.auth.project
    found = channel_of(project) if name == PRODUCTION else find_channel(project, name)
    if found is None:
        raise NotFound("This project has no channel of this name (`channel`).")
    return found


def as_json(request: Request, row: GateReport) -> dict[str, Any]:
    return outcome(row.baseline, row.candidate, row.channel, row.report, row.policy_version) | {
        "id": str(row.pk),
        "url": request.build_absolute_uri(
            reverse("promotion:report", args=[row.project.slug, row.pk])
        ),
        "created_at": row.created_at,
    }


@on(MoreOfRun)
def gate_against(question: MoreOfRun) -> dict[str, Any] | None:
    """{"gate": the verdict against a channel's live version} if `?against=` names the channel.
    Raises NotFound.
    """
    request, run = question.request, question.run
    name = request.query_params.get("against")
    return {"gate": _against(request, run, _channel(request, name))} if name else None


def _against(request: Request, run: EvalRun, channel: Channel) -> dict[str, Any]:
    """The newest stored report under the channel's current policy; if there is none, it is computed
    without being stored.
    """
    nothing = {"id": None, "url": None, "created_at": None}
    try:
        baseline = actions.live_baseline(run, channel)
        stored = reports_of(request.auth.project).filter(
            baseline=baseline, candidate=run, channel=channel, policy_version=policy_of(channel)[1]
        )
        if row := stored.first():
            return as_json(request, row)
        found = actions.compare_runs(baseline=baseline, candidate=run, channel=channel)
    except actions.PromotionError as error:
        return nothing | {
            "verdict": None,
            "summary": str(error),
            "checks": [],
            "channel": channel.name,
            "baseline": None,
            "baseline_model": str(channel.current) if channel.current else None,
            "candidate": str(run.pk),
            "candidate_model": str(run.model_version),
        }
    return nothing | outcome(baseline, run, channel, found.report.as_dict(), found.policy_version)
