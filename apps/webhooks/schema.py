"""What operations of webhooks take and give, with examples."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct, field

from apps.core.openapi import LINE, sent, told
from apps.core.operations import Moment, choice_of
from apps.webhooks.models import TEST, DeliveryState, Event, Format

EventName = choice_of(Event)
FormatName = Annotated[
    choice_of(Format),
    Meta(
        description="Choose Slack for the incoming webhooks of Slack, Mattermost and similar chats"
    ),
]
Url = Annotated[
    str,
    Meta(
        title="URL",
        min_length=1,
        max_length=500,
        pattern=LINE,
        description="Receives JSON by POST. Use https: the body is signed, not encrypted",
        examples=["https://ci.example.com/flywheel"],
    ),
]
Description = Annotated[
    str, Meta(max_length=120, pattern=LINE, description="What receives the events")
]
Events = Annotated[list[EventName], Meta(min_length=1)]
Secret = Annotated[str, Meta(description="The signing secret. It is given here only")]


class WebhookOut(Struct, kw_only=True):
    id: UUID
    url: str
    description: str
    events: list[EventName]
    format: Annotated[
        Literal[tuple(Format.values)],  # type: ignore[valid-type]
        Meta(description="`slack`: {text, blocks}, as Slack's incoming webhooks take"),
    ]
    state: Literal["enabled", "failing", "disabled"]
    disabled_reason: Annotated[str, Meta(description="Empty where a person disabled it")]
    failing_since: Moment | None
    created_at: Moment


class NewWebhookOut(WebhookOut, kw_only=True):
    secret: Secret


class RotatedOut(Struct):
    secret: Secret
    old_until: Moment


class DeliveryOut(Struct, kw_only=True):
    id: UUID
    message_id: Annotated[str, Meta(description="The header `webhook-id`")] = field(
        name="webhook_id"
    )
    event: choice_of(Event, [TEST])  # type: ignore[valid-type]
    subject: str
    state: Literal[tuple(DeliveryState.values)]  # type: ignore[valid-type]
    attempt: int = field(name="attempts")
    last_status: int | None
    due_at: Moment
    created_at: Moment
    finished_at: Moment | None


class AttemptOut(Struct):
    number: int
    at: Moment
    status: int | None
    latency_ms: float | None
    response: Annotated[
        str, Meta(description="Its first 1,000 characters, as the receiver sent them")
    ]
    error: str


class WholeDeliveryOut(DeliveryOut, kw_only=True):
    body: str
    log: list[AttemptOut]


NEW_EXAMPLE = sent(
    "A CI system",
    {
        "url": "https://ci.example.com/flywheel",
        "events": ["gate_report.made"],
        "description": "Release pipeline",
    },
)
MADE_EXAMPLE = told(
    "Its secret is given once",
    {
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
    "201",
)
