"""A channel's policy as immutable versions: who may promote, the margins, the errors. Edited on a
page, or as a file.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.actor import actor_name
from apps.core.errors import Rejected
from apps.core.models import ApiKey, Project, Role
from apps.promotion.conditions import require_not_archived
from apps.promotion.gate.policy import FIELDS, Policy
from apps.promotion.models import Channel, PromotionPolicy
from apps.promotion.proposals import loosened, rule_of
from apps.teamwork import proposals
from apps.teamwork.models import Proposal
from workers.lib.typed import convert, plain

PRODUCTION = "production"


class PolicyError(Rejected):
    """A policy that cannot be saved; the message is a sentence for the page."""


def channel_of(project: Project, name: str = PRODUCTION) -> Channel:
    return Channel.objects.get_or_create(project=project, name=name)[0]


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
) -> PromotionPolicy | Proposal | None:
    """Adds a version; None if it equals the current one. Needs an owner and a reason. What loosens
    a policy that asks for two people is a proposal, which a second person approves.
    Raises PolicyError, ProposalError, PromotionError.

    `by` is None for the command line. With an API key, the policy must allow keys, and the key's
    creator must be an owner; otherwise PermissionDenied is raised.
    """
    channel = _locked(channel)
    require_not_archived(channel)
    before, version = policy_of(channel)
    require_keys_allowed(channel, before, key)
    if by is not None or key is not None:
        get_membership(by, channel.project.slug, Role.OWNER)
    if not reason.strip():
        raise PolicyError("Enter a reason: it is stored with the version.")
    if version and policy == before:
        return None
    if by is not None and (loose := loosened(before, policy)):
        return proposals.propose(
            rule_of(channel, before),
            before=plain(before),
            values=plain(policy),
            loosened=[FIELDS[name].label for name in loose],
            instead="change the policy on the server with manage.py promotion_policy",
            reason=reason.strip(),
            by=by,
            actor_label=label_of(key),
        )
    return _store_version(
        channel=channel,
        policy=policy,
        reason=reason.strip(),
        by=by,
        actor=by,
        actor_label=label_of(key),
    )


@transaction.atomic
def approve_policy(
    *, channel: Channel, proposal: int, by: Any, key: ApiKey | None = None
) -> PromotionPolicy:
    """The second person's consent: the version applies. Raises ProposalError, PermissionDenied."""
    channel = _locked(channel)
    require_not_archived(channel)
    before, _ = policy_of(channel)
    require_keys_allowed(channel, before, key)
    get_membership(by, channel.project.slug, Role(before.promoters))
    row = proposals.accept(rule_of(channel, before), proposal=proposal, by=by)
    return _store_version(
        channel=channel,
        policy=convert(row.values, Policy, "policy"),
        reason=row.reason,
        by=row.by,
        approved_by=label_of(key) or actor_name(by),
        actor=by,
        actor_label=label_of(key),
    )


@transaction.atomic
def withdraw_policy(*, channel: Channel, proposal: int, by: Any, key: ApiKey | None = None) -> None:
    """Closes the proposal of `by`. Raises ProposalError, PermissionDenied."""
    channel = _locked(channel)
    policy, _ = policy_of(channel)
    require_keys_allowed(channel, policy, key)
    rule = rule_of(channel, policy)
    proposals.withdraw(rule, proposal=proposal, by=by, actor_label=label_of(key))


def _locked(channel: Channel) -> Channel:
    rows = Channel.objects.select_for_update(of=("self",), no_key=True)
    return rows.select_related("project").get(pk=channel.pk)


def _store_version(
    *,
    channel: Channel,
    policy: Policy,
    reason: str,
    by: Any,
    actor: Any,
    actor_label: str = "",
    approved_by: str = "",
) -> PromotionPolicy:
    """`channel`: locked. `by` wrote it; `actor` made it apply."""
    before, version = policy_of(channel)
    proposals.close(rule_of(channel, before))
    row = PromotionPolicy.objects.create(
        channel=channel,
        version=version + 1,
        values=plain(policy),
        reason=reason,
        by=by,
        approved_by=approved_by,
    )
    audit(
        "channel.policy_changed",
        project=channel.project,
        by=actor,
        actor_label=actor_label,
        target=channel,
        channel=channel.name,
        version=row.version,
        before=plain(before),
        after=row.values,
        reason=reason,
        proposed_by=actor_name(by) if approved_by else None,
    )
    return row
