"""A channel's policy as immutable versions: who may promote, the margins, the errors. Edited on a
page, or as a file.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import ApiKey, Project, Role
from apps.promotion.conditions import require_not_archived
from apps.promotion.gate.policy import Policy
from apps.promotion.models import Channel, PromotionPolicy
from workers.lib.typed import convert, plain

PRODUCTION = "production"


class PolicyError(Rejected):
    """A policy that cannot be saved; the message is a sentence for the page."""


def channel_of(project: Project, name: str = PRODUCTION) -> Channel:
    return Channel.objects.get_or_create(project=project, name=name)[0]


def create_channel(project: Project, name: str) -> tuple[Channel, bool]:
    """The channel with this name, and whether it is new. Raises PromotionError if an archived one
    has the name.
    """
    channel, new = Channel.objects.get_or_create(project=project, name=name)
    require_not_archived(channel)
    return channel, new


def find_channel(project: Project, name: str) -> Channel | None:
    return Channel.objects.filter(project=project, name=name).first()


def policy_of(channel: Channel | None) -> tuple[Policy, int]:
    """The current policy and its version; the defaults are version 0, also for a channel that does
    not exist yet.
    """
    row = channel.policies.first() if channel else None
    return (values_of(row), row.version) if row else (Policy(), 0)


def values_of(row: PromotionPolicy) -> Policy:
    return convert(row.values, Policy, "policy")


def require_keys_allowed(channel: Channel, policy: Policy, key: ApiKey | None) -> None:
    """Raises PermissionDenied if an API key is used and the channel's policy does not let keys
    change it.
    """
    if key is not None and not policy.api_keys:
        raise PermissionDenied(
            f"API keys cannot promote, roll back or change the policy in {channel}. An owner can"
            " allow it in the channel's policy (“api_keys”), on its page or with manage.py"
            " promotion_policy."
        )


def label_of(key: ApiKey | None) -> str:
    """For the audit log: the actor, if it was an API key."""
    return f"API key “{key.name}”" if key else ""


@transaction.atomic
def save_policy(
    *, channel: Channel, policy: Policy, reason: str, by: Any, key: ApiKey | None = None
) -> PromotionPolicy | None:
    """Adds a version; None if it equals the current one. Needs an owner and a reason. Raises
    PolicyError, PromotionError.

    `by` is None for the command line. With an API key, the policy must allow keys, and the key's
    creator must be an owner; otherwise PermissionDenied is raised.
    """
    channel = (
        Channel.objects.select_for_update(of=("self",), no_key=True)
        .select_related("project")
        .get(pk=channel.pk)
    )
    require_not_archived(channel)
    before, version = policy_of(channel)
    require_keys_allowed(channel, before, key)
    if by is not None or key is not None:
        get_membership(by, channel.project.slug, Role.OWNER)
    if not reason.strip():
        raise PolicyError("Enter a reason: it is stored with the version.")
    if version and policy == before:
        return None
    row = PromotionPolicy.objects.create(
        channel=channel, version=version + 1, values=plain(policy), reason=reason.strip(), by=by
    )
    audit(
        "channel.policy_changed",
        project=channel.project,
        by=by,
        actor_label=label_of(key),
        target=channel,
        channel=channel.name,
        version=row.version,
        before=plain(before),
        after=row.values,
        reason=row.reason,
    )
    return row
