"""Channels by API: their policy, what a comparison can show, reports, and promotion. The key decides the project.

A key acts with the present role of whoever created it, and only where the channel's policy allows keys (`api_keys`).
"""

from __future__ import annotations

import re
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import api_view
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.api import NO_MEMBER
from apps.core.forms import whole
from apps.core.openapi import JSON
from apps.evals.lookups import find_set
from apps.promotion import actions
from apps.promotion.gate.policy import Policy, as_toml, from_toml, from_values
from apps.promotion.models import Channel
from apps.promotion.policies import PolicyError, policy_of, save_policy
from apps.promotion.reports_api import find_report
from apps.promotion.wear import plan_for, wear_of
from workers.lib.typed import FormError, json_schema, plain

ANSWERS = {200: OpenApiTypes.OBJECT, 400: OpenApiTypes.OBJECT, 401: OpenApiTypes.OBJECT, 404: OpenApiTypes.OBJECT}
WRITES = ANSWERS | {403: OpenApiTypes.OBJECT, 409: OpenApiTypes.OBJECT}
CHANGE = {
    "type": "object",
    "required": ["reason"],
    "properties": {"policy": json_schema(Policy), "toml": {"type": "string"}, "reason": {"type": "string"}},
}
PROMOTION = {
    "type": "object",
    "required": ["report", "reason"],
    "properties": {"report": {"type": "string", "format": "uuid"}, "reason": {"type": "string"}},
}


@extend_schema(
    methods=["GET"],
    operation_id="v1_channels_policy_read",
    responses=ANSWERS,
    parameters=[OpenApiParameter("as", enum=["toml"], description="The file instead of JSON")],
    description="The policy that applies to a channel, and its version; 0 are the defaults.",
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_channels_policy_save",
    request={JSON: CHANGE},
    responses=WRITES,
    description="Adds a version: `policy`, or `toml` as exported; fields left out have their defaults. Needs a reason, a key "
    "of an admin, and a present policy that allows API keys.",
)
@api_view(["GET", "PUT"])
def policy(request: Request, name: str) -> Response | HttpResponse:
    channel = _channel(request, name)
    if request.method == "PUT" and (refused := _save(request, channel)):
        return refused
    now, version = policy_of(channel)
    if request.query_params.get("as") == "toml":
        return HttpResponse(as_toml(now), content_type="application/toml; charset=utf-8")
    return Response({"channel": channel.name, "version": version, "policy": plain(now)})


def _save(request: Request, channel: Channel) -> Response | None:
    """Saves what was sent; the answer where it cannot be."""
    try:
        reason = _text(request.data, "reason")
        given = request.data
        wanted = from_toml(_text(given, "toml")) if "toml" in given else from_values(given.get("policy"))
        save_policy(channel=channel, policy=wanted, reason=reason, by=request.auth.created_by, key=request.auth)
    except FormError as error:
        return Response({"path": error.path, "error": str(error)}, status=400)
    except (PolicyError, PermissionDenied, Http404) as error:
        return Response({"detail": str(error) or NO_MEMBER}, status=403)
    return None


@extend_schema(
    operation_id="v1_channels_promote",
    request={JSON: PROMOTION},
    responses=WRITES,
    description="Promotes a report's candidate. An API key may do so only where the channel's policy allows it and the gate "
    "says “promote”.",
)
@api_view(["POST"])
def promote(request: Request, name: str) -> Response:
    channel = _channel(request, name)
    try:
        report = find_report(request, _text(request.data, "report"))
        reason = _text(request.data, "reason")
        move = actions.promote(
            channel=channel, gate_report=report, by=request.auth.created_by, reason=reason, key=request.auth
        )
    except FormError as error:
        return Response({"path": error.path, "error": str(error)}, status=400)
    except actions.PromotionError as error:
        return Response({"detail": str(error)}, status=409)
    except (PermissionDenied, Http404) as error:
        return Response({"detail": str(error) or NO_MEMBER}, status=403)
    return Response({"channel": channel.name, "model": str(move.to_version), "report": str(report.pk)})


@extend_schema(
    operation_id="v1_channels_plan",
    responses=ANSWERS,
    parameters=[
        OpenApiParameter("eval_set", str, required=True, description="id or name@version"),
        OpenApiParameter("samples_per_task", int, description="1 to 64, else 8"),
    ],
    description="What the next comparison on a set's hold-out can show under the channel's policy, before anything is "
    "evaluated: power, margins that so many tasks never meet, and how far the tasks are worn.",
)
@api_view(["GET"])
def plan(request: Request, name: str) -> Response:
    channel = _channel(request, name)
    eval_set = find_set(request, request.query_params.get("eval_set", ""))
    now = policy_of(channel)[0]
    samples = whole(request.query_params.get("samples_per_task"), 1, 64) or 8
    found = plan_for(eval_set, now, samples)
    return Response({"plan": found.as_dict(), "wear": wear_of(eval_set, now).as_dict()})


SURROGATE = re.compile("[\ud800-\udfff]")  # PostgreSQL stores none


def _channel(request: Request, name: str) -> Channel:
    found = Channel.objects.filter(project=request.auth.project, name=name).select_related("project").first()
    if found is None:
        raise NotFound(f"This project has no channel “{name}”.")
    return found


def _text(data: Any, name: str) -> str:
    """Raises FormError."""
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, str) or not value.strip() or "\x00" in value or SURROGATE.search(value):
        raise FormError(name, "must be a text, without NUL and lone surrogates")
    return value
