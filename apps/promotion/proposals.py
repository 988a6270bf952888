"""A policy that asks for two people is not loosened by one: the change waits for a second person.

Whoever can switch a rule off alone is not bound by it. On the command line it can still be changed,
by somebody who has the server.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.promotion.announcing import announce_policy_proposal
from apps.promotion.gate.policy import FIELDS, Policy
from apps.promotion.models import Channel, PolicyProposal
from workers.lib.typed import plain

EXPIRES = timedelta(days=14)


class PolicyError(Rejected):
    """A policy that cannot be saved; the message is a sentence for the page."""


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


def propose(
    *,
    channel: Channel,
    before: Policy,
    version: int,
    policy: Policy,
    reason: str,
    by: Any,
    by_name: str,
    actor_label: str,
) -> PolicyProposal:
    """`channel`: locked; `before`, `version`: its policy. Raises PolicyError if nobody else could
    approve it.
    """
    if not may_promote(channel.project, before).exclude(user=by).exists():
        labels = ", ".join(f"“{FIELDS[name].label}”" for name in loosened(before, policy))
        raise PolicyError(
            f"A second person has to approve the change of {labels}, and nobody else in this"
            " project may. Add somebody under Settings → Members, or change the policy on the"
            " server with manage.py promotion_policy."
        )
    row = PolicyProposal.objects.create(
        channel=channel,
        after=version,
        values=plain(policy),
        reason=reason,
        by=by,
        by_name=by_name,
    )
    audit(
        "channel.policy_proposed",
        project=channel.project,
        by=by,
        actor_label=actor_label,
        target=channel,
        channel=channel.name,
        before=plain(before),
        after=row.values,
        reason=reason,
    )
    announce_policy_proposal(row)
    return row


def open_proposal(channel: Channel, version: int) -> PolicyProposal | None:
    """The newest one, while the policy version that it changes applies."""
    newest = channel.policy_proposals.select_related("by").first()
    is_open = newest and newest.after == version and timezone.now() - newest.at < EXPIRES
    return newest if is_open else None


def may_promote(project: Project, policy: Policy) -> Any:
    """The memberships of those who may promote under a policy."""
    roles = Role(policy.promoters).upward
    return project.memberships.filter(user__is_active=True, role__in=roles)
