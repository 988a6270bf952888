"""Which places serve what a channel runs now, or a candidate beside it."""

from __future__ import annotations

from typing import Any

from apps.promotion.deployment.models import Placement, Target
from apps.promotion.models import Channel
from apps.registry.models import ModelVersion


def placements_of(channel: Channel, version: ModelVersion | None = None) -> list[Placement]:
    """Of the current version, or of `version`, on servers, the healthy ones first: each with the `target.server` to ask and the name
    `served_as` there. Of a prompt version what its model is called. Empty where the channel has no targets, or none holds it yet."""
    found = (
        Placement.objects.ready()
        .filter(
            target__channel=channel,
            target__removed_at=None,
            target__server__isnull=False,
            version=version.pk if version else channel.current_id,
        )
        .select_related("target__server", "version")
    )
    return sorted(found, key=lambda placement: (bool(placement.problem), placement.target_id))


def acknowledged(target: Target, channel: Channel) -> dict[str, Any] | None:
    """What a webhook answered when the channel moved last; None where it was not asked: it became a target since, or no deployment moved it."""
    move = channel.promotions.order_by("-at", "-pk").first()
    return next((row for row in move.proof if row.get("target") == target.pk), None) if move else None


def not_told(target: Target, channel: Channel) -> str:
    """What has to be known of a webhook that was not asked for what runs now; "" where it was."""
    if target.webhook_id is None or channel.current_id is None or acknowledged(target, channel):
        return ""
    return f"It has not been notified of {channel.current}; it will be at the next promotion or rollback. Until then, deploy to it yourself."
