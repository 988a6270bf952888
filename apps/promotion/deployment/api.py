"""Where a channel is served, by API: targets, deployments, freezes. The key determines the
project.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, described, page, results, sent, told
from apps.core.query import number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import MANAGED, OPERATED, RESULT
from apps.evals.lookups import LIMIT, form_of
from apps.promotion.api import find_channel
from apps.promotion.deployment import actions
from apps.promotion.deployment.models import Deployment, Placement, Target
from apps.promotion.deployment.placements import not_told
from apps.promotion.models import Channel
from apps.promotion.policies import label_of, policy_of, require_keys_allowed
from apps.promotion.schema import (
    DEPLOYMENT,
    DEPLOYMENT_EXAMPLE,
    NULLABLE,
    WHEN,
    deployment_json,
)
from workers.lib.typed import json_schema

TARGET = {
    "type": "object",
    "required": ["id", "kind", "name", "version", "served_as", "proof", "problem"],
    "properties": {
        "id": {"type": "integer"},
        "kind": {"enum": Target.Kind.values},
        "name": {"type": "string"},
        "version": (
            NULLABLE
            | {"description": "The channel's live version, if it is known to be held there"}
        ),
        "served_as": NULLABLE,
        "proof": {"type": "object"},
        "problem": {
            "type": "string",
            "description": "Problems found by the last check; empty if none",
        },
        "checked_at": WHEN,
        "kept": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Earlier versions that are still loaded there",
        },
    },
}
TARGET_EXAMPLE = {
    "id": 3,
    "kind": "server",
    "name": "gpu-1",
    "version": "support-v4",
    "served_as": "live-production-support-v4-0d3f0c52",
    "proof": {"level": "weights", "gap": 0.004, "move": 0.99},
    "problem": "",
    "checked_at": "2026-11-22T08:05:00Z",
    "kept": ["support-v3"],
}


class NewTarget(Struct, forbid_unknown_fields=True, kw_only=True):
    """A server's name, or a webhook's id."""

    server: str = ""
    webhook: str = ""


def target_json(row: Target, placements: list[Placement]) -> dict[str, Any]:
    ready = [found for found in placements if found.state == Placement.State.READY]
    now = next((found for found in ready if found.version_id == row.channel.current_id), None)
    return {
        "id": row.pk,
        "kind": row.kind,
        "name": str(row.server or row.webhook),
        "version": str(now.version) if now else None,
        "served_as": now.served_as if now else None,
        "proof": now.proof if now else {},
        "problem": now.problem if now else not_told(row, row.channel),
        "checked_at": now.checked_at if now else None,
        "kept": [str(found.version) for found in ready if found is not now],
    }


def targets_of(channel: Channel) -> list[Target]:
    """With their placements prefetched."""
    rows = channel.targets.current().select_related("server", "webhook", "channel")
    return list(rows.prefetch_related("placements__version"))


def _managing(request: Request, name: str) -> tuple[Channel, dict[str, Any]]:
    """The channel, and `by` and the label of whoever changes it. Raises PermissionDenied if its
    policy does not allow keys.
    """
    channel = find_channel(request, name)
    require_keys_allowed(channel, policy_of(channel)[0], request.auth)
    return channel, {"by": request.auth.created_by, "actor_label": label_of(request.auth)}


@extend_schema(
    methods=["GET"],
    operation_id="v1_channels_targets_list",
    responses=described({200: results(TARGET)}, 404),
    examples=[told("One server", {"results": [TARGET_EXAMPLE]})],
    description=(
        "Where a channel's version is served, what each target holds, and what was verified there."
    ),
)
@extend_schema(
    methods=["POST"],
    operation_id="v1_channels_targets_add",
    request={JSON: json_schema(NewTarget)},
    responses=described({201: TARGET}, 400, 403, 404, 409),
    examples=[
        sent("A server", {"server": "gpu-1"}),
        told("Added", TARGET_EXAMPLE | {"version": None, "served_as": None, "proof": {}}, "201"),
    ],
    description=(
        "Adds a server or a webhook as a target. The live version is loaded there immediately."
        " Requires an operator's key and a policy that allows API keys."
    ),
)
@api(GET=RESULT, POST=OPERATED)
def targets(request: Request, name: str) -> Response:
    if request.method == "GET":
        rows = targets_of(find_channel(request, name))
        return Response({"results": [target_json(row, list(row.placements.all())) for row in rows]})
    channel, acting = _managing(request, name)
    asked = form_of(request, NewTarget)
    server = channel.project.servers.filter(name=asked.server).first() if asked.server else None
    webhook = (
        channel.project.webhooks.filter(pk=_uuid(asked.webhook)).first() if asked.webhook else None
    )
    return Response(
        target_json(
            actions.add_target(channel=channel, server=server, webhook=webhook, **acting), []
        ),
        status=201,
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


@extend_schema(
    operation_id="v1_channels_targets_remove",
    responses=described({200: results(TARGET)}, 403, 404, 409),
    examples=[told("None is left", {"results": []})],
    description=(
        "Removes a target and unloads the channel's versions there. Returns the remaining targets."
    ),
)
@api(DELETE=OPERATED)
def target(request: Request, name: str, pk: int) -> Response:
    channel, acting = _managing(request, name)
    found = channel.targets.current().filter(pk=pk).first()
    if found is None:
        raise NotFound("This channel has no such target.")
    actions.remove_target(target=found, **acting)
    return Response(
        {"results": [target_json(row, list(row.placements.all())) for row in targets_of(channel)]}
    )


@extend_schema(
    operation_id="v1_channels_deployments_list",
    responses=described({200: page(DEPLOYMENT, "integer")}, 400, 404),
    parameters=[
        LIMIT,
        OpenApiParameter(
            "offset", whole_number(0, 10**9, 0), description="`next` of the page before"
        ),
    ],
    examples=[told("One that runs", {"results": [DEPLOYMENT_EXAMPLE], "next": None})],
    description="Every deployment of a channel, newest first, including failed ones.",
)
@api(GET=RESULT)
def deployments(request: Request, name: str) -> Response:
    limit, offset = number_of(request, "limit"), number_of(request, "offset")
    rows = find_channel(request, name).deployments.select_related(
        "channel", "version", "from_version"
    )
    found = list(rows.order_by("-created_at", "-pk")[offset : offset + limit + 1])
    following = offset + limit if len(found) > limit else None
    return Response({"results": [deployment_json(row) for row in found[:limit]], "next": following})


def find_deployment(channel: Channel, pk: UUID) -> Deployment:
    """Raises NotFound."""
    found = (
        channel.deployments.select_related("channel", "version", "from_version")
        .filter(pk=pk)
        .first()
    )
    if found is None:
        raise NotFound("This channel has no deployment with this id.")
    return found


@extend_schema(
    operation_id="v1_channels_deployments_retrieve",
    responses=described({200: DEPLOYMENT}, 404),
    examples=[told("One that runs", DEPLOYMENT_EXAMPLE)],
    description="Progress of a deployment on each target.",
)
@api(GET=RESULT)
def deployment(request: Request, name: str, pk: UUID) -> Response:
    return Response(deployment_json(find_deployment(find_channel(request, name), pk)))


@extend_schema(
    operation_id="v1_channels_deployments_stop",
    request=None,
    responses=described({200: DEPLOYMENT}, 403, 404, 409),
    examples=[told("One that runs", DEPLOYMENT_EXAMPLE | {"state": "cancelled"})],
    description=(
        "Stops a deployment immediately. Newly loaded weights are unloaded; the live version stays"
        " live."
    ),
)
@api(POST=MANAGED)
def stop(request: Request, name: str, pk: UUID) -> Response:
    channel, acting = _managing(request, name)
    found = find_deployment(channel, pk)
    actions.stop(deployment=found, by=acting["by"], reason=f"Stopped by {acting['actor_label']}.")
    found.refresh_from_db()
    return Response(deployment_json(found))
