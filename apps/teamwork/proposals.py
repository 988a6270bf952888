"""A rule that asks for two people is not loosened by one: the change waits for a second person.

Whoever can switch a rule off alone is not bound by it. Each app declares its `TwoPersonRule`s, says
what loosens them, and stores the values of an approved proposal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Model, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from apps.core.actions import audit
from apps.core.actor import actor_name
from apps.core.errors import Rejected
from apps.core.models import Membership, Project, Role
from apps.notifications.actions import notify, retract
from apps.notifications.catalogue import Topic
from apps.teamwork.models import Proposal
from apps.webhooks.actions import announce
from apps.webhooks.models import Event

EXPIRES = timedelta(days=14)
WAITING = "A second person has to approve this change on this page. Until then nothing changes."
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "policy": {"type": "object"},
        "reason": {"type": "string"},
        "by": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
    },
}


class ProposalError(Rejected):
    """A sentence for the page."""


@dataclass(frozen=True)
class TwoPersonRule:
    """`name` completes "wants to change"; `approver` is the lowest role of the second person; the
    audit log has `{audited}_proposed` and `{audited}_withdrawn` with `detail`.
    """

    project: Project
    target: Model
    name: str
    approver: Role
    audited: str
    page: str
    detail: dict[str, str] = field(default_factory=dict)

    @property
    def approvers(self) -> QuerySet[Membership]:
        return self.project.memberships.filter(user__is_active=True, role__in=self.approver.upward)

    @property
    def proposals(self) -> QuerySet[Proposal]:
        return Proposal.objects.filter(project=self.project).about(self.target)


def propose(
    rule: TwoPersonRule,
    *,
    before: dict[str, Any],
    values: dict[str, Any],
    loosened: list[str],
    instead: str,
    reason: str,
    by: Any,
    actor_label: str = "",
) -> Proposal:
    """Replaces the open one. The target is locked by the caller. `loosened`: labels of the fields;
    `instead`: what else can be done where nobody could approve it. Raises ProposalError.
    """
    if not rule.approvers.exclude(user=by).exists():
        labels = ", ".join(f"“{label}”" for label in loosened)
        raise ProposalError(
            f"A second person has to approve the change of {labels}, and nobody else in this"
            f" project may. Add somebody under Settings → Members, or {instead}."
        )
    close(rule)
    row = Proposal.objects.create(
        project=rule.project,
        target_type=rule.target._meta.label_lower,
        target_id=str(rule.target.pk),
        values=values,
        reason=reason,
        by=by,
        by_name=actor_label or actor_name(by),
    )
    _record(rule, "proposed", by, actor_label, before=before, after=values, reason=reason)
    _announce(rule, row)
    return row


def open_proposal(rule: TwoPersonRule) -> Proposal | None:
    rows = rule.proposals.filter(closed_at=None, at__gt=timezone.now() - EXPIRES)
    return rows.select_related("by").first()


def accept(rule: TwoPersonRule, *, proposal: int, by: Any) -> Proposal:
    """Closes the proposal as approved by a second person; the caller, who has locked the target and
    checked the role of `by`, stores its values. Raises ProposalError.
    """
    row = _find(rule, proposal)
    if row.by_id == by.pk:
        raise ProposalError("You proposed this change: another person has to approve it.")
    owners = rule.project.memberships.filter(user__is_active=True, role=Role.OWNER)
    if not owners.filter(user=row.by_id).exists():
        raise ProposalError(f"{row.by_name} is no longer an owner here. Save the change again.")
    close(rule)
    return row


def withdraw(rule: TwoPersonRule, *, proposal: int, by: Any, actor_label: str = "") -> None:
    """Whoever proposed it no longer wants it. Raises ProposalError."""
    row = _find(rule, proposal)
    if row.by_id != by.pk:
        raise ProposalError(f"{row.by_name} proposed this change: only they can withdraw it.")
    close(rule)
    _record(rule, "withdrawn", by, actor_label, reason=row.reason)


def close(rule: TwoPersonRule) -> None:
    """The rule has changed, or its open proposal is decided."""
    rows = rule.proposals.filter(closed_at=None)
    retract([_key(pk) for pk in rows.values_list("pk", flat=True)])
    rows.update(closed_at=Now())


def as_json(row: Proposal) -> dict[str, Any]:
    names = ("reason", "at")
    return {
        "id": row.pk,
        "policy": row.values,
        "by": row.by_name,
        **{name: getattr(row, name) for name in names},
    }


def page_context(rule: TwoPersonRule, membership: Membership) -> dict[str, Any]:
    """What teamwork/_proposal.html shows; the app adds `lines`, what would change."""
    row = open_proposal(rule)
    own = row is not None and row.by_id == membership.user_id
    return {
        "proposal": row,
        "may_approve": row is not None and not own and membership.may(rule.approver),
        "may_withdraw": own,
        "approver": rule.approver.label,
        "expires": EXPIRES.days,
    }


def _find(rule: TwoPersonRule, pk: int) -> Proposal:
    row = open_proposal(rule)
    if row is None or row.pk != pk:
        raise ProposalError("This change is no longer open. Save it again to propose it.")
    return row


def _record(rule: TwoPersonRule, what: str, by: Any, actor_label: str, **detail: Any) -> None:
    audit(
        f"{rule.audited}_{what}",
        project=rule.project,
        by=by,
        actor_label=actor_label,
        target=rule.target,
        **rule.detail,
        **detail,
    )


def _announce(rule: TwoPersonRule, row: Proposal) -> None:
    subject = f"{row.by_name} wants to change {rule.name}: needs a second approval"
    announce(
        project=rule.project,
        event=Event.POLICY_PROPOSED,
        subject=subject,
        data={
            "proposal": row.pk,
            "by": row.by_name,
            "reason": row.reason,
            "page": rule.page,
            **rule.detail,
        },
    )
    notify(
        topic=Topic.POLICY_PROPOSED,
        project=rule.project,
        by=row.by,
        subject=subject,
        page=rule.page,
        key=_key(row.pk),
        excerpt=row.reason,
        role=rule.approver,
    )


def _key(pk: int) -> str:
    return f"policy_proposal:{pk}"
