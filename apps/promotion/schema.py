"""What operations of channels take and answer: moves, deployments and freezes; with examples."""

from __future__ import annotations

from typing import Annotated, Any

from drf_spectacular.utils import OpenApiExample
from msgspec import Meta

from apps.core.openapi import LINE
from apps.core.operations import Reference, Written
from apps.promotion.announcing import move_json
from apps.promotion.conditions import MAX_REASON
from apps.promotion.deployment.models import Deployment, Target
from apps.promotion.models import Approval, Channel, Freeze, GateReport, Promotion
from apps.promotion.reports import find_report

NULLABLE = {"type": ["string", "null"]}
WHEN = {"type": ["string", "null"], "format": "date-time"}
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
BEGUN = {
    "type": "object",
    "properties": {
        "deployment": DEPLOYMENT,
        "approval": {"type": "object", "description": "The first of two: {by, reason, at}"},
    },
}

ChannelName = Annotated[str, Meta(title="Name", pattern=r"\A[-a-zA-Z0-9_]{1,60}\Z")]
Segment = Annotated[str, Meta(max_length=80, pattern=LINE)]
Sentence = Annotated[str, Meta(max_length=MAX_REASON)]
Reason = Annotated[str, Meta(max_length=MAX_REASON, pattern=r"\S")]
ReportNamed = Annotated[GateReport, Reference(find_report, sent=str), Meta(description="Its id")]


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


def begun_json(begun: Deployment | Approval) -> dict[str, Any]:
    if isinstance(begun, Deployment):
        return {"deployment": deployment_json(begun)}
    return {"approval": {"by": begun.by_name, "reason": begun.reason, "at": begun.at}}


def freeze_json(channel: Channel, freeze: Freeze | None) -> dict[str, Any]:
    return {
        "channel": channel.name,
        "frozen": freeze is not None,
        "reason": freeze.reason if freeze else "",
        "until": freeze.until if freeze else None,
        "by": freeze.by_name if freeze else None,
    }


def moved_or_begun(moved: Promotion | Deployment | Approval) -> tuple[int, Any]:
    """200 if the channel has moved, 202 if it will."""
    return (200 if isinstance(moved, Promotion) else 202), moved


SEGMENT = Written(
    {
        "type": "object",
        "properties": {"channel": {"type": "string"}, "segment": {"type": "string"}},
    },
    lambda request, channel: {"channel": channel.name, "segment": channel.segment},
)
RELOADED = Written(
    RESTORED, lambda request, channel: {"channel": channel.name, "version": str(channel.current)}
)
FREEZING = Written(FREEZE, lambda request, freeze: freeze_json(freeze.channel, freeze))
MOVED = Written(MOVE, lambda request, move: move_json(move))
BEGINS = Written(BEGUN, lambda request, begun: begun_json(begun))
LOADING = Written(DEPLOYMENT, lambda request, deployment: deployment_json(deployment))

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


DEPLOYMENT_EXAMPLE = {
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
FROZEN = {
    "channel": "production",
    "frozen": True,
    "reason": "Holidays",
    "until": "2026-12-28T08:00:00Z",
    "by": "mara",
}
UNFROZEN = {"channel": "production", "frozen": False, "reason": "", "until": None, "by": None}


PROMOTE_EXAMPLE = OpenApiExample(
    "By a report",
    value={
        "report": "0d3f0c52-9a51-4b1e-8a4c-0a3d5f2f7c11",
        "reason": "12 points better on refunds",
    },
    request_only=True,
)
BACK_EXAMPLE = OpenApiExample(
    "At once",
    value={"reason": "Refunds fail since 08:10", "from_version": "support-v4"},
    request_only=True,
)
BACK_TO_EXAMPLE = OpenApiExample(
    "Rolled back",
    response_only=True,
    status_codes=["200"],
    value=MOVE_EXAMPLE.value
    | {
        "id": 8,
        "kind": "rollback",
        "from_version": "support-v4",
        "to_version": "support-v3",
        "reason": "Refunds fail since 08:10",
        "gate_report": None,
    },
)
BEGUN_EXAMPLE = OpenApiExample(
    "To its targets",
    response_only=True,
    status_codes=["202"],
    value={"deployment": DEPLOYMENT_EXAMPLE},
)
