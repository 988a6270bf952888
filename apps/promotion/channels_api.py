"""Changes to a channel by API: its policy, promotion and rollback; and what a comparison can show
before it is made.

A key acts with the current role of its creator, and only if the channel's policy allows keys
(`api_keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described
from apps.core.query import number_of, whole_number
from apps.core.routes import TOTALS, WHEN_EVALUATED, api, shows
from apps.core.scopes import MANAGED, OWNED, RESULT
from apps.evals.lookups import find_set, form_of
from apps.promotion import policies
from apps.promotion.api import find_channel
from apps.promotion.gate.policy import Policy, as_toml, from_toml, from_values
from apps.promotion.models import (
    Channel,
    PromotionPolicy,
)
from apps.promotion.policies import policy_of, save_policy, values_of
from apps.promotion.proposals import rule_of
from apps.promotion.schema import Reason
from apps.promotion.wear import plan_for, wear_of
from apps.teamwork import proposals
from apps.teamwork.models import Proposal
from workers.lib.typed import json_schema, plain


class Change(Struct, forbid_unknown_fields=True, kw_only=True):
    """`policy`, or `toml` as exported."""

    reason: Reason
    policy: dict[str, Any] | None = None
    toml: str | None = None


class Decide(Struct, forbid_unknown_fields=True, kw_only=True):
    """`proposal`: its id, as the policy has it."""

    proposal: Annotated[int, Meta(ge=1)]


PROPOSAL = proposals.SCHEMA | {
    "properties": proposals.SCHEMA["properties"] | {"policy": json_schema(Policy)}
}
POLICY = {
    "type": "object",
    "required": ["channel", "version", "policy", "versions"],
    "properties": {
        "channel": {"type": "string"},
        "version": {"type": "integer", "description": "0: the defaults"},
        "policy": json_schema(Policy),
        "versions": {
            "type": "array",
            "description": "Who saved each version, when and why; newest first",
            "items": {
                "type": "object",
                "properties": {
                    "version": {"type": "integer"},
                    "reason": {"type": "string"},
                    "by": {"type": ["string", "null"]},
                    "approved_by": {
                        "type": ["string", "null"],
                        "description": "The second person, if two had to agree",
                    },
                    "at": {"type": "string", "format": "date-time"},
                },
            },
        },
        "proposal": {
            "anyOf": [PROPOSAL, {"type": "null"}],
            "description": "A change that a second person has to approve",
        },
    },
}
CHANGE = json_schema(Change) | {
    "properties": json_schema(Change)["properties"] | {"policy": json_schema(Policy)}
}
PLAN = {"type": "object", "properties": {"plan": {"type": "object"}, "wear": {"type": "object"}}}
CHANGE_EXAMPLE = OpenApiExample(
    "Decide on more tasks",
    value={"policy": {"min_tasks": 60, "api_keys": True}, "reason": "Small sets decided too often"},
    request_only=True,
)
POLICY_EXAMPLE = OpenApiExample(
    "The defaults",
    response_only=True,
    status_codes=["200"],
    value={
        "channel": "production",
        "version": 0,
        "policy": plain(Policy()),
        "versions": [],
        "proposal": None,
    },
)
PROPOSED = {"type": "object", "properties": {"proposal": PROPOSAL}}
PROPOSED_EXAMPLE = OpenApiExample(
    "A second person decides",
    response_only=True,
    status_codes=["202"],
    value={
        "proposal": {
            "id": 4,
            "policy": plain(Policy()),
            "reason": "We are only two now",
            "by": "ana",
            "at": "2026-11-22T08:00:00Z",
        }
    },
)
APPROVE_EXAMPLE = OpenApiExample("The open one", value={"proposal": 4}, request_only=True)
PLAN_EXAMPLE = OpenApiExample(
    "Enough tasks",
    response_only=True,
    status_codes=["200"],
    value={
        "plan": {
            "tasks": 120,
            "samples_per_task": 8,
            "comparison": 3,
            "level": 0.0017,
            "smallest_effect": 0.08,
            "effects": [0.03, 0.05, 0.1],
            "tasks_needed": {"1": [2900, 1100, 290], "8": [830, 300, 80]},
            "never_met": [],
            "source": "From the 2 newest evaluations.",
            "sentence": "120 tasks × 8 samples show 8 points.",
        },
        "wear": {
            "tasks": 120,
            "evaluations": 3,
            "views": 2,
            "level": 0.0017,
            "factor": 1.3,
            "evaluations_left": 11,
            "fresh_tasks_due": False,
        },
    },
)
MOST = 50  # versions returned


@extend_schema(
    methods=["GET"],
    operation_id="v1_channels_policy_read",
    responses=described({200: POLICY}, 404),
    examples=[POLICY_EXAMPLE],
    parameters=[
        OpenApiParameter("as", enum=["toml"], description="TOML file instead of JSON"),
        OpenApiParameter(
            "version",
            whole_number(0, 2**31 - 1),
            description="An earlier version instead of the current one",
        ),
    ],
    description="The policy that applies to a channel, and its version; 0 means the defaults.",
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_channels_policy_save",
    request={JSON: CHANGE},
    responses=described({200: POLICY, 202: PROPOSED}, 400, 403, 404, 409),
    examples=[CHANGE_EXAMPLE, POLICY_EXAMPLE, PROPOSED_EXAMPLE],
    description=(
        "Adds a version: `policy`, or `toml` as exported; fields left out have their defaults."
        " Needs a reason, a key of an owner, and a present policy that allows API keys. 202 where"
        " the policy asks for two people and the change loosens who may promote: nothing changes"
        " until a second person approves the `proposal`."
    ),
)
@api(GET=RESULT, PUT=OWNED)
def policy(request: Request, name: str) -> Response | HttpResponse:
    channel = find_channel(request, name)
    if request.method == "PUT":
        asked = form_of(request, Change)
        wanted = from_values(asked.policy) if asked.toml is None else from_toml(asked.toml)
        row = save_policy(
            channel=channel,
            policy=wanted,
            reason=asked.reason,
            by=request.auth.created_by,
            key=request.auth,
        )
        if isinstance(row, Proposal):
            return Response({"proposal": proposals.as_json(row)}, status=202)
    return _policy(request, channel)


@extend_schema(
    operation_id="v1_channels_policy_approve",
    request={JSON: json_schema(Decide)},
    responses=described({200: POLICY}, 400, 403, 404, 409),
    examples=[APPROVE_EXAMPLE, POLICY_EXAMPLE],
    description=(
        "Approves the open `proposal` of a channel's policy, as a second person: somebody who may"
        " promote and did not propose it. Needs a policy that allows API keys."
    ),
)
@api(POST=MANAGED)
def approve_policy(request: Request, name: str) -> Response | HttpResponse:
    return _decided(request, name, policies.approve_policy)


@extend_schema(
    operation_id="v1_channels_policy_withdraw",
    request={JSON: json_schema(Decide)},
    responses=described({200: POLICY}, 400, 403, 404, 409),
    examples=[APPROVE_EXAMPLE, POLICY_EXAMPLE],
    description=(
        "Withdraws the open `proposal` of a channel's policy, by whoever proposed it. Needs a"
        " policy that allows API keys."
    ),
)
@api(POST=OWNED)
def withdraw_policy(request: Request, name: str) -> Response | HttpResponse:
    return _decided(request, name, policies.withdraw_policy)


def _decided(request: Request, name: str, decide: Callable[..., Any]) -> Response | HttpResponse:
    channel, asked = find_channel(request, name), form_of(request, Decide)
    given = {"by": request.auth.created_by, "key": request.auth}
    decide(channel=channel, proposal=asked.proposal, **given)
    return _policy(request, channel)


def _policy(request: Request, channel: Channel) -> Response | HttpResponse:
    now, version = policy_of(channel)
    proposal = proposals.open_proposal(rule_of(channel, now))
    if (number := number_of(request, "version")) is not None:
        row = PromotionPolicy.objects.filter(channel=channel, version=number).first()
        if row is None:
            raise NotFound("This channel's policy has no such version (`version`).")
        now, version = values_of(row), row.version
    if request.query_params.get("as") == "toml":
        return HttpResponse(as_toml(now), content_type="application/toml; charset=utf-8")
    rows = channel.policies.select_related("by")[:MOST]
    versions = [
        {
            "version": row.version,
            "reason": row.reason,
            "by": row.by and row.by.get_username(),
            "approved_by": row.approved_by or None,
            "at": row.at,
        }
        for row in rows
    ]
    return Response(
        {
            "channel": channel.name,
            "version": version,
            "policy": plain(now),
            "versions": versions,
            "proposal": proposals.as_json(proposal) if proposal else None,
        }
    )


@shows(TOTALS, WHEN_EVALUATED)
@extend_schema(
    operation_id="v1_channels_plan",
    responses=described({200: PLAN}, 404),
    examples=[PLAN_EXAMPLE],
    parameters=[
        OpenApiParameter("eval_set", str, required=True, description="id or name@version"),
        OpenApiParameter("samples_per_task", whole_number(1, 64, 8)),
    ],
    description=(
        "What the next comparison on a set's hold-out can show under the channel's policy, before"
        " anything is evaluated: power, margins that this many tasks can never meet, and how far"
        " the tasks are worn."
    ),
)
@api(GET=RESULT)
def plan(request: Request, name: str) -> Response:
    channel = find_channel(request, name)
    eval_set = find_set(request, request.query_params["eval_set"])
    now = policy_of(channel)[0]
    samples = number_of(request, "samples_per_task")
    found = plan_for(eval_set, now, samples)
    return Response({"plan": found.as_dict(), "wear": wear_of(eval_set, now).as_dict()})
