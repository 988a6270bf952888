"""Policy rules over REST: what the system prompts state, and people's decisions on it. The key determines the project."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import member_of
from apps.core.openapi import described
from apps.core.openapi import page as page_schema
from apps.failures.actions import policy
from apps.failures.actions.decisions import Refused
from apps.failures.models import PolicyRule
from apps.failures.prompts import MOST_COUNTED, MOST_EXAMPLES, rules_of
from apps.trajectories.api import number_of
from apps.trajectories.shown import runs_shown

PAGE, MAX_PAGE = 50, 200
STATES = list(PolicyRule.State.values)
RULE = {
    "type": "object",
    "required": [
        "id",
        "prompt",
        "sentence",
        "meaning",
        "understood",
        "state",
        "decided_by",
        "decided_at",
        "runs",
        "examples",
    ],
    "properties": {
        "id": {"type": "integer"},
        "prompt": {
            "type": "object",
            "properties": {
                "digest": {"type": "string", "description": "Without dates, times of day and UUIDs"},
                "opening": {"type": "string"},
                "first_seen": {"type": "string", "format": "date-time"},
            },
        },
        "sentence": {"type": "string", "description": "Of the system prompt"},
        "meaning": {"type": "string", "description": "How it was understood"},
        "understood": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "`kind` (confirm, never, always, if, can) and `subject`, `verb`, `field`, `value`, `thing`, `except`",
        },
        "state": {"enum": STATES},
        "decided_by": {"type": ["string", "null"]},
        "decided_at": {"type": ["string", "null"], "format": "date-time"},
        "runs": {"type": "integer", "description": f"How many runs break the rule, counted up to {MOST_COUNTED}"},
        "examples": {
            "type": "array",
            "description": f"The newest runs that break the rule, at most {MOST_EXAMPLES}",
            "items": {
                "type": "object",
                "properties": {
                    "trajectory": {"type": "string"},
                    "message_index": {"type": "integer"},
                    "text": {"type": "string"},
                },
            },
        },
    },
}
DECISION = {"type": "object", "required": ["state"], "properties": {"state": {"enum": STATES}}}


@extend_schema(
    operation_id="v1_policy_rules_list", responses=described({200: page_schema(RULE, "integer")}, 400, 403),
    parameters=[
        OpenApiParameter("state", str, enum=STATES),
        OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, else {PAGE}"),
        OpenApiParameter("offset", int, description="0, or `next` of the last page"),
    ],
    description="Rules that the project's system prompts state, newest prompts first.",
)  # fmt: skip
@api_view(["GET"])
def rules(request: Request) -> Response:
    project = request.auth.project
    limit, offset = number_of(request, "limit", PAGE, 1, MAX_PAGE), number_of(request, "offset", 0, 0, 10**6)
    rows = rules_of(project).order_by("-prompt__first_seen", "-prompt", "position")
    if state := request.query_params.get("state"):
        if state not in STATES:
            raise ValidationError({"path": "state", "error": f"must be one of {', '.join(STATES)}"})
        rows = rows.filter(state=state)
    found = list(rows[offset : offset + limit + 1])
    _shown(request, found[:limit])
    following = offset + limit if len(found) > limit else None
    return Response({"results": [as_json(rule) for rule in found[:limit]], "next": following})


@extend_schema(
    operation_id="v1_policy_rules_decide", request={"application/json": DECISION},
    responses=described({200: RULE}, 400, 403, 404),
    description="Confirms or dismisses a rule; `proposed` takes the decision back. Runs are then classified again.",
    examples=[OpenApiExample("confirm", value={"state": "confirmed"}, request_only=True)],
)  # fmt: skip
@api_view(["POST"])
def decide(request: Request, pk: int) -> Response:
    project, given = request.auth.project, request.data if isinstance(request.data, dict) else {}
    rule = PolicyRule.objects.filter(prompt__project=project, pk=pk).first()
    if rule is None:
        raise NotFound
    try:
        policy.decide(project=project, rule=rule, state=str(given.get("state")), by=member_of(request).user)
    except Refused as refused:
        raise ValidationError({"path": "state", "error": str(refused)}) from refused
    rule = rules_of(project).get(pk=pk)
    _shown(request, [rule])
    return Response(as_json(rule))


def _shown(request: Request, found: list[PolicyRule]) -> None:
    runs = {one.trajectory_id for rule in found for one in rule.newest}
    runs_shown(request.auth.project, runs, to=request.auth, where="API")


def as_json(rule: PolicyRule) -> dict[str, Any]:
    prompt = {name: getattr(rule.prompt, name) for name in ("digest", "opening", "first_seen")}
    examples = [
        {"trajectory": one.trajectory.external_id, "message_index": one.message_index, "text": one.text}
        for one in rule.newest
    ]
    names = ("sentence", "meaning", "understood", "state", "decided_at", "runs")
    given = {name: getattr(rule, name) for name in names}
    by = rule.decided_by.get_username() if rule.decided_by else None
    return {"id": rule.pk, "prompt": prompt, **given, "decided_by": by, "examples": examples}
