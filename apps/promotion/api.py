"""Channels by API: list them, read the live model version, and every change. The key determines the
project.
"""

from __future__ import annotations

from typing import Annotated, Any

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described, page, results
from apps.core.query import LARGEST_KEY, is_true, number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import OWNED, RESULT
from apps.evals.lookups import LIMIT, form_of
from apps.promotion.actions import previous_of
from apps.promotion.announcing import move_json
from apps.promotion.models import Channel, Promotion
from apps.promotion.policies import create_channel, policy_of
from workers.lib.typed import json_schema

NULLABLE = {"type": ["string", "null"]}
CHANNEL = {
    "type": "object",
    "required": [
        "channel",
        "model",
        "previous",
        "policy_version",
        "updated_at",
        "archived_at",
        "served",
    ],
    "properties": {
        "channel": {"type": "string"},
        "model": NULLABLE | {"description": "The live model version; null if nothing is live yet"},
        "digest": NULLABLE,
        "previous": (
            NULLABLE
            | {"description": "The version a rollback would restore; null if there is none"}
        ),
        "policy_version": {"type": "integer", "description": "0: the defaults"},
        "updated_at": {"type": "string", "format": "date-time"},
        "id": {
            "type": "integer",
            "description": "For `/api/v1/objects/channel/ID/`, which archives and deletes it",
        },
        "archived_at": {"type": ["string", "null"], "format": "date-time"},
        "served": {
            "type": "boolean",
            "description": (
                "Whether its version is to be served: false if it has none, is archived, or was and"
                " needs a restore"
            ),
        },
    },
}
MOVE = {
    "type": "object",
    "required": [
        "id",
        "kind",
        "channel",
        "from_version",
        "to_version",
        "reason",
        "by",
        "gate_report",
        "at",
    ],
    "properties": {
        "id": {"type": "integer"},
        "kind": {"enum": Promotion.Kind.values},
        "channel": {"type": "string"},
        "from_version": NULLABLE,
        "to_version": {"type": "string"},
        "reason": {"type": "string"},
        "by": NULLABLE | {"description": "The user; for an API key, its creator"},
        "gate_report": {"type": ["string", "null"], "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "overridden": {"type": "boolean", "description": "Against the gate, by an owner"},
        "deployment": {"type": ["string", "null"], "format": "uuid"},
        "proof": {
            "type": "array",
            "description": "What was verified on each target before the channel moved",
            "items": {"type": "object"},
        },
    },
}
CHANNELS_EXAMPLE = OpenApiExample(
    "Production",
    response_only=True,
    status_codes=["200"],
    value={
        "channel": "production",
        "model": "support-v4",
        "digest": "9b1c…",
        "previous": "support-v3",
        "policy_version": 2,
        "updated_at": "2026-11-22T08:00:00Z",
        "id": 3,
        "archived_at": None,
        "served": True,
    },
)
NEW_EXAMPLE = OpenApiExample("A second channel", value={"name": "staging"}, request_only=True)
MADE_EXAMPLE = OpenApiExample(
    "A channel without a model",
    response_only=True,
    status_codes=["200", "201"],
    value={
        "channel": "staging",
        "model": None,
        "digest": None,
        "previous": None,
        "policy_version": 0,
        "updated_at": "2026-11-22T08:00:00Z",
        "id": 4,
        "archived_at": None,
        "served": False,
    },
)
MOVE_EXAMPLE = OpenApiExample(
    "A promotion",
    response_only=True,
    status_codes=["200"],
    value={
        "id": 7,
        "kind": "promote",
        "channel": "production",
        "from_version": "support-v3",
        "to_version": "support-v4",
        "reason": "12 points better on refunds",
        "by": "mara",
        "gate_report": "0d3f0c52-9a51-4b1e-8a4c-0a3d5f2f7c11",
        "at": "2026-11-22T08:00:00Z",
    },
)


class NewChannel(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,60}\Z")]


@extend_schema(
    methods=["GET"],
    operation_id="v1_channels_list",
    responses=described({200: results(CHANNEL)}),
    examples=[CHANNELS_EXAMPLE],
    parameters=[OpenApiParameter("archived", bool, description="Archived channels instead")],
    description=(
        "The project's channels, each with its live version and the version a rollback would"
        " restore."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_channels_create",
    request={JSON: json_schema(NewChannel)},
    responses=described({200: CHANNEL, 201: CHANNEL}, 400, 403, 409, 413),
    examples=[NEW_EXAMPLE, MADE_EXAMPLE],
    description=(
        "Creates a channel; an existing one stays unchanged (200; 409 if it is archived). The key's"
        " creator must be an owner."
    ),
)
@api(GET=RESULT, POST=OWNED)
def collection(request: Request) -> Response:
    project = request.auth.project
    if request.method == "POST":
        row, new = create_channel(project, form_of(request, NewChannel).name)
        return Response(channel_json(row), status=201 if new else 200)
    archived = is_true(request, "archived")
    return Response(
        {
            "results": [
                channel_json(row)
                for row in project.channels.shown(archived).select_related("current")
            ]
        }
    )


def channel_json(row: Channel) -> dict[str, Any]:
    previous = previous_of(row)
    return {
        "channel": row.name,
        "model": str(row.current) if row.current else None,
        "digest": row.current.digest if row.current else None,
        "previous": str(previous) if previous else None,
        "policy_version": policy_of(row)[1],
        "updated_at": row.updated_at,
        "id": row.pk,
        "archived_at": row.archived_at,
        "served": row.current is not None and not row.not_served,
    }


@extend_schema(
    operation_id="v1_channels_history",
    responses=described({200: page(MOVE)}, 400, 404),
    examples=[MOVE_EXAMPLE],
    parameters=[
        OpenApiParameter(
            "cursor",
            whole_number(0, LARGEST_KEY, LARGEST_KEY),
            description="`next` of the page before",
        ),
        LIMIT,
    ],
    description="Every promotion and rollback of a channel, newest first.",
)
@api(GET=RESULT)
def history(request: Request, name: str) -> Response:
    limit = number_of(request, "limit")
    rows = find_channel(request, name).promotions.select_related(
        "channel", "from_version", "to_version", "by"
    )
    found = list(rows.filter(pk__lt=number_of(request, "cursor")).order_by("-pk")[: limit + 1])
    following = str(found[limit - 1].pk) if len(found) > limit else None
    return Response({"results": [move_json(move) for move in found[:limit]], "next": following})


def find_channel(request: Request, name: str) -> Channel:
    """Raises NotFound."""
    found = (
        Channel.objects.filter(project=request.auth.project, name=name)
        .select_related("project", "current")
        .first()
    )
    if found is None:
        raise NotFound(f"This project has no channel “{name}”.")
    return found
