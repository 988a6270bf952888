"""Which places serve what a channel runs now."""

from __future__ import annotations

from apps.promotion.deployment.models import Placement
from apps.promotion.models import Channel


def placements_of(channel: Channel) -> list[Placement]:
    """Of the current version, on servers, the healthy ones first: each with the `target.server` to ask and the name `served_as`
    there. Of a prompt version what its model is called. Empty where the channel has no targets, or none holds it yet."""
    found = (
        Placement.objects.ready()
        .filter(
            target__channel=channel, target__removed_at=None, target__server__isnull=False, version=channel.current_id
        )
        .select_related("target__server", "version")
    )
    return sorted(found, key=lambda placement: (bool(placement.problem), placement.target_id))
