"""A project's channels: list them, and create one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta

from apps.core.models import Project, Role
from apps.core.operations import Rest, Written, operation
from apps.core.scopes import Scope
from apps.promotion import schema
from apps.promotion.actions import previous_of
from apps.promotion.conditions import require_not_archived
from apps.promotion.models import Channel
from apps.promotion.policies import policy_of


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


CHANNEL = Written(schema.CHANNEL, lambda request, channel: channel_json(channel))


@operation(
    "channels_list",
    rest=Rest("GET", "channels/", "channels"),
    gives=list[CHANNEL],  # type: ignore[valid-type]
    scope=(Scope.READ, Scope.EVALUATE),
    examples=(schema.CHANNELS_EXAMPLE,),
)
def channels(
    *,
    project: Project,
    archived: Annotated[bool, Meta(description="Archived channels instead")] = False,
) -> Iterable[Channel]:
    """The project's channels, each with its live version and the version a rollback would
    restore.
    """
    return project.channels.shown(archived).select_related("current")


@operation(
    "channels_create",
    rest=Rest("POST", "channels/", "channels"),
    gives={200: CHANNEL, 201: CHANNEL},
    outcome=lambda created: (201 if created[1] else 200, created[0]),
    role=Role.OWNER,
    examples=(schema.NEW_EXAMPLE, schema.MADE_EXAMPLE),
)
def create_channel(*, project: Project, name: schema.ChannelName) -> tuple[Channel, bool]:
    """Creates a channel; an existing one stays unchanged (200; 409 if it is archived). The key's
    creator must be an owner.

    Returns it, and whether it is new. Raises PromotionError.
    """
    channel, new = Channel.objects.get_or_create(project=project, name=name)
    require_not_archived(channel)
    return channel, new
