"""Where a channel is served, by API: targets, deployments, freezes. The key determines the
project.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter, extend_schema
from msgspec import Meta, Struct
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core.openapi import JSON, LINE, described, page, results, sent, told
from apps.core.query import number_of, whole_number
from apps.core.routes import api
from apps.core.scopes import MANAGED, OPERATED, OWNED, RESULT
from apps.evals.lookups import LIMIT, form_of
from apps.promotion import freezing
from apps.promotion.actions import set_segment
from apps.promotion.api import find_channel
from apps.promotion.conditions import MAX_REASON
from apps.promotion.deployment import actions
from apps.promotion.deployment.models import Deployment, Placement, Target
from apps.promotion.deployment.placements import not_told
from apps.promotion.models import Channel
from apps.promotion.policies import label_of, policy_of, require_keys_allowed
from workers.lib.typed import json_schema

NULLABLE = {"type": ["string", "null"]}
WHEN = {"type": ["string", "null"], "format": "date-time"}
OUTCOME = {
    "type": "object",
    "required": ["target", "kind", "name", "state", "served_as", "sentence", "proof", "seconds"],
    "properties": {
        "target": {"type": "integer"},
        "kind": {"enum": Target.Kind.values},
        "name": {"type": "string"},
        "state": {
            "enum": [
                "waiting",
                "loading",
                "loaded",
                "proving",
                "proved",
                "live",
                "failed",
                "undone",
                "unreachable",
            ]
        },
        "served_as": {"type": "string"},
        "sentence": {
            "type": "string",
            "description": "What was verified and what was not, or what failed",
        },
        "proof": {
            "type": "object",
            "description": "{level, sentence, canary, gap, move}; {} if nothing was verified",
        },
        "seconds": {"type": ["number", "null"]},
    },
}
DEPLOYMENT = {
    "type": "object",
    "required": [
        "id",
        "channel",
        "kind",
        "version",
        "from_version",
        "state",
        "label",
        "error",
        "targets",
        "created_at",
    ],
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "channel": {"type": "string"},
        "kind": {"enum": Deployment.Kind.values},
        "version": {"type": "string"},
        "from_version": NULLABLE,
        "state": {"enum": ["queued", "running", "succeeded", "failed", "cancelled"]},
        "label": {"type": "string", "description": "Current activity"},
        "error": {"type": "string"},
        "reason": {"type": "string"},
        "by": {"type": "string"},
        "gate_report": NULLABLE,
        "targets": {"type": "array", "items": OUTCOME},
        "created_at": {"type": "string", "format": "date-time"},
        "finished_at": WHEN,
    },
}
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
RESTORED = {
    "type": "object",
    "properties": {"channel": {"type": "string"}, "version": {"type": "string"}},
}
FREEZE = {
    "type": "object",
    "required": ["channel", "frozen", "reason", "until", "by"],
    "properties": {
        "channel": {"type": "string"},
        "frozen": {"type": "boolean"},
        "reason": {"type": "string"},
        "until": WHEN,
        "by": NULLABLE,
    },
}
REASON = Annotated[str, Meta(max_length=MAX_REASON, pattern=r"\S")]
EXAMPLE = {
    "id": "0d3f0c52-9a51-4b1e-8a4c-0a3d5f2f7c11",
    "channel": "production",
    "kind": "promote",
    "version": "support-v4",
    "from_version": "support-v3",
    "state": "running",
    "label": "Proving",
    "error": "",
    "reason": "12 points better",
    "by": "mara",
    "gate_report": "6b0c66f7-47a5-4c1c-8f1c-0d6b2e9a5b30",
    "targets": [
        {
            "target": 3,
            "kind": "server",
            "name": "gpu-1",
            "state": "loaded",
            "served_as": "live-production-support-v4-0d3f0c52",
            "sentence": "",
            "proof": {},
            "seconds": 1.4,
        }
    ],
    "created_at": "2026-11-22T08:00:00Z",
    "finished_at": None,
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


FROZEN = {
    "channel": "production",
    "frozen": True,
    "reason": "Holidays",
    "until": "2026-12-28T08:00:00Z",
    "by": "mara",
}
UNFROZEN = {"channel": "production", "frozen": False, "reason": "", "until": None, "by": None}


class NewTarget(Struct, forbid_unknown_fields=True, kw_only=True):
    """A server's name, or a webhook's id."""

    server: str = ""
    webhook: str = ""


class NewFreeze(Struct, forbid_unknown_fields=True, kw_only=True):
    """`until`: with an offset or in UTC; without it, somebody has to lift the freeze."""

    reason: REASON
    until: datetime | None = None


def deployment_json(row: Deployment) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "channel": row.channel.name,
        "kind": row.kind,
        "version": str(row.version),
        "from_version": str(row.from_version) if row.from_version else None,
        "state": row.state,
        "label": row.label,
        "error": row.error,
        "reason": row.reason,
        "by": row.spec.get("by", ""),
        "gate_report": str(row.gate_report_id) if row.gate_report_id else None,
        "targets": row.outcomes,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


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
    examples=[told("One that runs", {"results": [EXAMPLE], "next": None})],
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
    examples=[told("One that runs", EXAMPLE)],
    description="Progress of a deployment on each target.",
)
@api(GET=RESULT)
def deployment(request: Request, name: str, pk: UUID) -> Response:
    return Response(deployment_json(find_deployment(find_channel(request, name), pk)))


@extend_schema(
    operation_id="v1_channels_deployments_stop",
    request=None,
    responses=described({200: DEPLOYMENT}, 403, 404, 409),
    examples=[told("One that runs", EXAMPLE | {"state": "cancelled"})],
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


@extend_schema(
    operation_id="v1_channels_restore",
    request=None,
    responses=described({200: RESTORED, 202: DEPLOYMENT}, 403, 404, 409),
    examples=[
        told("Served again", {"channel": "production", "version": "support-v4"}),
        told("Begun", EXAMPLE | {"kind": "restore", "state": "queued"}, "202"),
    ],
    description=(
        "Reloads and verifies the live version on the channel's servers; the channel does not move."
        " A channel that was archived serves its version again after that. Without servers there is"
        " nothing to verify, and it does so at once (200)."
    ),
)
@api(POST=MANAGED)
def restore(request: Request, name: str) -> Response:
    channel, acting = _managing(request, name)
    row = actions.restore(channel=channel, reason=f"Requested by {acting['actor_label']}", **acting)
    if row is None:
        return Response({"channel": channel.name, "version": str(channel.current)})
    return Response(deployment_json(row), status=202)


def freeze_json(channel: Channel) -> dict[str, Any]:
    row = freezing.freeze_of(channel)
    return {
        "channel": channel.name,
        "frozen": row is not None,
        "reason": row.reason if row else "",
        "until": row.until if row else None,
        "by": row.by_name if row else None,
    }


@extend_schema(
    methods=["GET"],
    operation_id="v1_channels_freeze_read",
    responses=described({200: FREEZE}, 404),
    examples=[told("Frozen", FROZEN)],
    description="Whether a channel is frozen, until when, and why.",
)
@extend_schema(
    methods=["PUT"],
    operation_id="v1_channels_freeze",
    request={JSON: json_schema(NewFreeze)},
    responses=described({200: FREEZE}, 400, 403, 404, 409),
    examples=[
        sent("Over the holidays", {"reason": "Holidays", "until": "2026-12-28T08:00:00Z"}),
        told("Frozen", FROZEN),
    ],
    description=(
        "Freezes a channel: promotions are blocked, rollbacks are still possible. Requires an"
        " operator's key."
    ),
)
@extend_schema(
    methods=["DELETE"],
    operation_id="v1_channels_unfreeze",
    responses=described({200: FREEZE}, 403, 404, 409),
    examples=[told("No longer", UNFROZEN)],
    description="Lifts a freeze.",
)
@api(GET=RESULT, PUT=OPERATED, DELETE=OPERATED)
def freeze(request: Request, name: str) -> Response:
    channel = find_channel(request, name)
    if request.method == "PUT":
        asked = form_of(request, NewFreeze)
        until = (
            asked.until.replace(tzinfo=UTC)
            if asked.until and asked.until.tzinfo is None
            else asked.until
        )
        freezing.freeze(
            channel=channel,
            reason=asked.reason,
            until=until,
            by=request.auth.created_by,
            key=request.auth,
        )
    elif request.method == "DELETE":
        freezing.unfreeze(channel=channel, by=request.auth.created_by, key=request.auth)
    return Response(freeze_json(channel))


class Segment(Struct, forbid_unknown_fields=True, kw_only=True):
    segment: Annotated[str, Meta(max_length=80, pattern=LINE)]


@extend_schema(
    operation_id="v1_channels_segment",
    request={JSON: json_schema(Segment)},
    responses=described(
        {
            200: {
                "type": "object",
                "properties": {"channel": {"type": "string"}, "segment": {"type": "string"}},
            }
        },
        400,
        403,
        404,
    ),
    examples=[
        sent("The customers in Europe", {"segment": "eu"}),
        told("Labelled", {"channel": "production", "segment": "eu"}),
    ],
    description=(
        "Labels a channel with the environment or users it serves. Requires an owner's key."
    ),
)
@api(PUT=OWNED)
def segment(request: Request, name: str) -> Response:
    channel, acting = _managing(request, name)
    text = form_of(request, Segment).segment.strip()
    set_segment(channel=channel, segment=text, by=acting["by"])
    return Response({"channel": channel.name, "segment": text})
