"""What archiving a channel does besides hiding it: its trial ends, its targets unload, and it is no
longer served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apps.core.models import ApiKey
from apps.promotion.announcing import announce_archived
from apps.promotion.deployment.models import Placement
from apps.promotion.deployment.unloading import leave
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Channel, Trial
from apps.promotion.moves import name_of
from apps.promotion.policies import PRODUCTION, label_of, policy_of, require_keys_allowed
from apps.promotion.trials.ending import end
from apps.promotion.trials.models import TrialState

# each names something that refers to a channel, such as “the flow nightly”
USERS: list[Callable[[Channel], list[str]]] = []
NAMED = 5

ARCHIVED_TEXT = (
    "Ends its canary or shadow, unloads its versions from its targets and hides it from lists and"
    " menus. The endpoint and the API answer 404 for it; clients that pull keep their cached copy."
    " Its history and gate reports stay, and you can unarchive it."
)
UNARCHIVED_TEXT = (
    "Shows it in lists and menus again, with its history. Nothing is served until its version is"
    " restored or another one is deployed."
)


def why_not(channel: Channel) -> str:
    """Why it cannot be archived now, as a sentence; "" if it can. In the transaction that archives
    it, with its row locked.
    """
    if active := channel.deployments.active().first():
        return f"“{active}” is running. Wait for it or stop it first."
    if channel.name != PRODUCTION:
        return ""
    users = [user for users_of in USERS for user in users_of(channel)]
    if not users:
        return ""
    more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
    return f"It is used by {', '.join(users[:NAMED])}{more}. Change or delete what uses it first."


def allow_key(channel: Channel, key: ApiKey | None) -> None:
    """Raises PermissionDenied."""
    require_keys_allowed(channel, policy_of(channel)[0], key)


def on_archive(channel: Channel, *, back: bool, by: Any, key: ApiKey | None) -> None:
    """In the transaction that archives or unarchives it, with its row locked."""
    who = label_of(key) or name_of(by)
    if not back:
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
                actor_label=label_of(key),
            )
        placed = Placement.objects.filter(target__channel=channel)
        leave(placed.exclude(state=Placement.State.LEAVING))
    announce_archived(channel, back=back, by=by, who=who)
    notify_listeners(channel)
