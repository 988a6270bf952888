"""What the API of webhooks takes and gives: the forms that bodies are checked with, JSON Schemas,
and examples.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from drf_spectacular.utils import OpenApiExample
from msgspec import UNSET, Meta, Struct, UnsetType

from apps.core.openapi import LINE
from apps.webhooks.models import TEST, Attempt, Delivery, DeliveryState, Event, Format, Webhook
from workers.lib.typed import json_schema

EventName = Literal[tuple(Event.values)]
FormatName = Literal[tuple(Format.values)]
Url = Annotated[str, Meta(min_length=1, max_length=500, pattern=LINE)]
Description = Annotated[str, Meta(max_length=120, pattern=LINE)]
Events = Annotated[list[EventName], Meta(min_length=1)]


class NewWebhook(Struct, forbid_unknown_fields=True, kw_only=True):
    """An address that is sent events. Without `events`: all of them."""

    url: Url
    events: Events | None = None
    description: Description = ""
    format: FormatName = "standard"


class WebhookChanges(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is left out stays. `enabled: false` sends nothing until it is true again."""

    url: Url | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    format: FormatName | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


NEW, CHANGES = json_schema(NewWebhook), json_schema(WebhookChanges)
TIME, TIME_OR_NULL = (
    {"type": "string", "format": "date-time"},
    {"type": ["string", "null"], "format": "date-time"},
)
ID = {"type": "string", "format": "uuid"}
WEBHOOK = {
    "type": "object",
    "required": [
        "id",
        "url",
        "description",
        "events",
        "format",
        "state",
        "disabled_reason",
        "failing_since",
        "created_at",
    ],
    "properties": {
        "id": ID,
        "url": {"type": "string"},
        "description": {"type": "string"},
        "events": {"type": "array", "items": {"enum": Event.values}},
        "format": {
            "enum": Format.values,
            "description": "`slack`: {text, blocks}, as Slack's incoming webhooks take",
        },
        "state": {"enum": ["enabled", "failing", "disabled"]},
        "disabled_reason": {"type": "string", "description": "Empty where a person disabled it"},
        "failing_since": TIME_OR_NULL,
        "created_at": TIME,
    },
}
SECRET = {"type": "string", "description": "The signing secret. It is given here only"}
NEW_WEBHOOK = {
    "type": "object",
    "required": [*WEBHOOK["required"], "secret"],  # type: ignore[misc]
    "properties": WEBHOOK["properties"] | {"secret": SECRET},  # type: ignore[operator]
}
ROTATED = {
    "type": "object",
    "required": ["secret"],
    "properties": {"secret": SECRET, "old_until": TIME},
}
DELIVERY: dict[str, Any] = {
    "type": "object",
    "required": [
        "id",
        "webhook_id",
        "event",
        "subject",
        "state",
        "attempts",
        "last_status",
        "due_at",
        "created_at",
    ],
    "properties": {
        "id": ID,
        "webhook_id": {"type": "string", "description": "The header `webhook-id`"},
        "event": {"enum": [*Event.values, TEST]},
        "subject": {"type": "string"},
        "state": {"enum": DeliveryState.values},
        "attempts": {"type": "integer"},
        "last_status": {"type": ["integer", "null"]},
        "due_at": TIME,
        "created_at": TIME,
        "finished_at": TIME_OR_NULL,
    },
}
ATTEMPT = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "at": TIME,
        "status": {"type": ["integer", "null"]},
        "latency_ms": {"type": ["number", "null"]},
        "response": {
            "type": "string",
            "description": "Its first 1,000 characters, as the receiver sent them",
        },
        "error": {"type": "string"},
    },
}
WHOLE_DELIVERY = {
    "type": "object",
    "required": [*DELIVERY["required"], "body", "log"],
    "properties": (
        DELIVERY["properties"]
        | {
            "body": {"type": "string"},
            "log": {"type": "array", "items": ATTEMPT},
        }
    ),
}
NEW_EXAMPLE = OpenApiExample(
    "A CI system",
    request_only=True,
    value={
        "url": "https://ci.example.com/flywheel",
        "events": ["gate_report.made"],
        "description": "Release pipeline",
    },
)
MADE_EXAMPLE = OpenApiExample(
    "Its secret is given once",
    response_only=True,
    status_codes=["201"],
    value={
        "id": "5f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11",
        "url": "https://ci.example.com/flywheel",
        "description": "Release pipeline",
        "events": ["gate_report.made"],
        "format": "standard",
        "state": "enabled",
        "disabled_reason": "",
        "failing_since": None,
        "created_at": "2026-11-22T08:00:00Z",
        "secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    },
)


def webhook_json(hook: Webhook) -> dict[str, Any]:
    return {
        "id": str(hook.pk),
        "url": hook.url,
        "description": hook.description,
        "events": hook.events,
        "format": hook.format,
        "state": hook.state,
        "disabled_reason": hook.disabled_reason,
        "failing_since": hook.failing_since,
        "created_at": hook.created_at,
    }


def delivery_json(row: Delivery) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "webhook_id": row.message_id,
        "event": row.event,
        "subject": row.subject,
        "state": row.state,
        "attempts": row.attempt,
        "last_status": row.last_status,
        "due_at": row.due_at,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }


def attempt_json(row: Attempt) -> dict[str, Any]:
    return {
        name: getattr(row, name)
        for name in ("number", "at", "status", "latency_ms", "response", "error")
    }
