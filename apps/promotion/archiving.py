"""What archiving a channel does besides hiding it: its trial ends, its targets unload, and it is no
longer served.
"""

from __future__ import annotations

from apps.core.bus import Question, ask, on
from apps.core.managed.objects import (
    Archived,
    ArchivingOrDeleting,
    Managed,
    WhyNotArchive,
    WhyNotRename,
    register,
)
from apps.core.models import Role
from apps.promotion.announcing import announce_archived
from apps.promotion.deployment.models import Placement
from apps.promotion.deployment.unloading import leave
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel, Trial
from apps.promotion.moves import name_of
from apps.promotion.policies import PRODUCTION, label_of, policy_of, require_keys_allowed
from apps.promotion.trials.ending import end
from apps.promotion.trials.models import TrialState

NAMED = 5

register(
    Managed(
        kind="channel",
        noun="the channel",
        plural="Models",
        model=Channel,
        name="name",
        versioned=False,
        archivers=Role.OWNER,
        archive_confirm="The endpoint stops answering for it.",
        archived_text=(
            "Ends its canary or shadow, unloads its versions from its targets and hides it from"
            " lists and menus. The endpoint and the API answer 404 for it; clients that pull keep"
            " their cached copy. Its history and gate reports stay, and you can unarchive it."
        ),
        unarchived_text=(
            "Shows it in lists and menus again, with its history. Nothing is served until its"
            " version is restored or another one is deployed."
        ),
    )
)


class ChannelUsers(Question[list[str]]):
    """What refers to a channel by its name, such as “the flow nightly”."""

    channel: Channel


@on(WhyNotRename[Channel])
def names_are_fixed(question: WhyNotRename[Channel]) -> str:
    return "Agents, clients and flows ask for a channel by its name, so it cannot be renamed."


@on(WhyNotArchive[Channel])
def is_in_use(question: WhyNotArchive[Channel]) -> str | None:
    channel = question.row
    if active := channel.deployments.active().first():
        return f"“{active}” is running. Wait for it or stop it first."
    if channel.name != PRODUCTION:
        return None
    users = [user for users in ask(ChannelUsers(channel)) for user in users]
    if not users:
        return None
    more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
    return f"It is used by {', '.join(users[:NAMED])}{more}. Change or delete what uses it first."


@on(ArchivingOrDeleting[Channel])
def require_keys_may_change(event: ArchivingOrDeleting[Channel]) -> None:
    """Raises PermissionDenied."""
    require_keys_allowed(event.row, policy_of(event.row)[0], event.key)


@on(Archived[Channel])
def stop_serving(event: Archived[Channel]) -> None:
    channel, by = event.row, event.by
    who = label_of(event.key) or name_of(by)
    if not event.back:
        Channel.objects.filter(pk=channel.pk).exclude(current=None).update(needs_restore=True)
        if (
            trial := Trial.objects.active()
            .filter(channel=channel)
            .select_related("channel")
            .first()
        ):
            end(
                trial,
                TrialState.STOPPED,
                f"{who} archived the channel.",
                by=by,
                actor_label=label_of(event.key),
            )
        placed = Placement.objects.filter(target__channel=channel)
        leave(placed.exclude(state=Placement.State.LEAVING))
    announce_archived(channel, back=event.back, by=by, who=who)
    notify_listeners(channel)
