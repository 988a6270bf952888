"""What loosens who may promote to a channel: such a change waits for a second person
(`teamwork.proposals`). On the command line it can still be made, by somebody who has the server.
"""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from apps.core.models import Project, Role
from apps.promotion.gate.policy import Policy
from apps.promotion.models import Channel
from apps.teamwork.proposals import TwoPersonRule


def rule_of(channel: Channel, policy: Policy) -> TwoPersonRule:
    """`policy`: the channel's current one."""
    return TwoPersonRule(
        project=channel.project,
        target=channel,
        name=f"who may promote to {channel}",
        approver=Role(policy.promoters),
        audited="channel.policy",
        page=reverse("promotion:policy", args=[channel.project.slug, channel.name]),
        detail={"channel": channel.name},
    )


def loosened(before: Policy, after: Policy) -> list[str]:
    """The fields by which fewer people, or people with a lower role, could promote; none if
    `before` does not ask for two.
    """
    if not before.two_people:
        return []
    loose = {
        "two_people": not after.two_people,
        "api_keys": after.api_keys and not before.api_keys,
        "promoters": Role(after.promoters).rank < Role(before.promoters).rank,
        "approvers": Role(after.approvers).rank < Role(before.approvers).rank,
    }
    return [name for name, is_loose in loose.items() if is_loose]


def may_promote(project: Project, policy: Policy) -> Any:
    """The memberships of those who may promote under a policy."""
    roles = Role(policy.promoters).upward
    return project.memberships.filter(user__is_active=True, role__in=roles)
