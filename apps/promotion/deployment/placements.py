"""Which places serve what a channel runs now, or a candidate beside it."""

from __future__ import annotations

from apps.promotion.deployment.models import Placement
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
