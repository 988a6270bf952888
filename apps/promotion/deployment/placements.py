"""The places that serve a channel's live version, or a candidate in addition."""

from __future__ import annotations

from typing import Any

from apps.promotion.deployment.models import Placement, Target
from apps.promotion.models import Channel
from apps.registry.models import ModelVersion


def placements_of(channel: Channel, version: ModelVersion | None = None) -> list[Placement]:
    """Placements of the current version, or of `version`, on servers, healthy ones first: each with
    the `target.server` to call and the name `served_as` there. For a prompt version, the name of
    its model. Empty if the channel has no targets, or none holds it yet.
    """
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
    """What a webhook answered at the channel's last move; None if it was not asked: it became a
    target later, or no deployment moved the channel."""
    move = channel.promotions.first()
    return (
        next((row for row in move.proof if row.get("target") == target.pk), None) if move else None
    )


def not_told(target: Target, channel: Channel) -> str:
    """A note about a webhook that was not asked to serve the live version; "" if it was."""
    if target.webhook_id is None or channel.current_id is None or acknowledged(target, channel):
        return ""
    return (
        f"It has not been notified of {channel.current}; it will be at the next promotion or"
        " rollback. Until then, deploy to it yourself."
    )
