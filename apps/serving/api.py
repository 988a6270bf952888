"""The endpoint over REST: its address, what answers for each channel, and the limits of keys."""

from __future__ import annotations

from typing import Annotated, Any

from drf_spectacular.utils import extend_schema
from msgspec import Meta, Struct, to_builtins
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.models import ApiKey
from apps.core.openapi import JSON, described, sent
from apps.core.routes import api
from apps.core.scopes import OPERATED, READABLE
from apps.serving import clients
from apps.serving.actions import FIELDS, set_limits
from apps.serving.models import KeyLimits
from apps.serving.routes import CANARY, SHADOW, Lane, Route, routes_of
from workers.lib.typed import convert, json_schema

Most = Annotated[int, Meta(ge=0, le=2_000_000_000)]


class NewLimits(Struct, forbid_unknown_fields=True, kw_only=True):
    """0 is no limit."""

    requests_per_minute: Most = 0
    tokens_per_minute: Most = 0
    at_once: Most = 0


LIMITS = {
    "type": "object",
    "required": list(FIELDS),
    "properties": {name: {"type": "integer"} for name in FIELDS},
}
CANDIDATE = {
    "type": ["object", "null"],
    "description": (
        "During a trial: its candidate; `share` of the sessions that it answers (canary) or that"
        " are also sent to it (shadow)"
    ),
    "required": ["kind", "model", "share", "servers", "problem"],
    "properties": {
        "kind": {"type": "string", "enum": [CANARY, SHADOW]},
        "model": {"type": "string"},
        "share": {"type": "number"},
        "servers": {"type": "array", "items": {"type": "string"}},
        "problem": {"type": "string"},
    },
}
CHANNEL = {
    "type": "object",
    "required": ["channel", "model", "servers", "problem", "candidate"],
    "properties": {
        "channel": {"type": "string", "description": "What requests name as `model`"},
        "model": {"type": "string", "description": "The version that answers"},
        "servers": {"type": "array", "items": {"type": "string"}},
        "problem": {"type": "string", "description": "Why no model is available; empty if one is"},
        "candidate": CANDIDATE,
    },
}
ENDPOINT = {
    "type": "object",
    "required": ["base_url", "channels"],
    "properties": {"base_url": {"type": "string"}, "channels": {"type": "array", "items": CHANNEL}},
}


def route_json(route: Route) -> dict[str, Any]:
    current, *others = route.lanes
    candidate = next(
        ({"kind": lane.kind, "share": lane.share} | _lane_json(lane) for lane in others), None
    )
    return {"channel": route.channel, **_lane_json(current), "candidate": candidate}


def _lane_json(lane: Lane) -> dict[str, Any]:
    return {
        "model": lane.version,
        "servers": [backend.server for backend in lane.backends],
        "problem": lane.problem,
    }


@extend_schema(
    operation_id="v1_endpoint_read",
    responses=described({200: ENDPOINT}, 403),
    description=(
        "The endpoint's URL (OpenAI's API), and what answers for each channel with a live version."
    ),
)
@api(GET=READABLE)
def endpoint(request: Request) -> Response:
    channels = [route_json(route) for route in routes_of(request.auth.project)]
    return Response({"base_url": clients.base_url(request), "channels": channels})


@extend_schema(
    methods=["GET"],
    operation_id="v1_endpoint_limits_read",
    responses=described({200: LIMITS}, 403, 404),
    description="The limits of a key at the endpoint; 0 means no limit.",
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_endpoint_limits_set",
    request={JSON: json_schema(NewLimits)},
    responses=described({200: LIMITS}, 400, 403, 404),
    examples=[sent("A small agent", {"requests_per_minute": 60, "at_once": 4})],
    description="Sets the limits of a key at the endpoint; omitted limits are removed.",
)
@api(GET=OPERATED, PUT=OPERATED)
def limits(request: Request, pk: int) -> Response:
    key = ApiKey.objects.live().filter(project=request.auth.project, pk=pk).first()
    if key is None:
        raise NotFound("No API key of this project has this id.")
    row = KeyLimits.objects.filter(key=key).first() or KeyLimits(key=key)
    if request.method == "PUT":
        given, asking = to_builtins(convert(request.data, NewLimits)), request.auth
        row = set_limits(
            key=key, limits=given, by=asking.created_by, actor_label=f"key {asking.prefix}…"
        )
    return Response({name: getattr(row, name) for name in FIELDS})
