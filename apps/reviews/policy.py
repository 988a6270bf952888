"""What a project asks of a verifier before it may train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.urls import reverse

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.actor import actor_name
from apps.core.errors import Rejected
from apps.core.models import Project, Role
from apps.reviews.models import ReviewPolicy
from apps.reviews.people import Company, companies_of
from apps.teamwork import proposals
from apps.teamwork.models import Proposal
from apps.teamwork.proposals import TwoPersonRule

FIELDS = (
    "min_samples",
    "min_kappa",
    "min_accuracy",
    "max_false_positive_rate",
    "reviewers_per_sample",
    "four_eyes",
    "max_unreviewed_share",
    "probes_must_pass",
)


class PolicyError(Rejected):
    """A policy that cannot be; the message is a sentence for the page."""


def as_dict(policy: ReviewPolicy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in FIELDS}


DEFAULTS = as_dict(ReviewPolicy())


def policies_of(projects: Iterable[int]) -> dict[int, dict[str, Any]]:
    """{project: its policy as its owners set it}; the defaults if it has no row."""
    wanted = set(projects)
    rows = {row.project_id: as_dict(row) for row in ReviewPolicy.objects.filter(project__in=wanted)}
    return {pk: rows.get(pk, DEFAULTS) for pk in wanted}


def policy_of(project: Project) -> dict[str, Any]:
    return policies_of([project.pk])[project.pk]


def in_force(policy: dict[str, Any], company: Company) -> dict[str, Any]:
    """The policy as it applies to these people: a project of one person cannot have two reviewers
    or four eyes.
    """
    alone = {"reviewers_per_sample": 1, "four_eyes": False} if company.alone else {}
    return policy | alone | {"alone": company.alone}


def policy_in_force(project: Project) -> dict[str, Any]:
    return in_force(policy_of(project), companies_of([project.pk])[project.pk])


def rule_of(project: Project) -> TwoPersonRule:
    return TwoPersonRule(
        project=project,
        target=project,
        name="how many people review",
        approver=Role.REVIEWER,
        audited="review.policy",
        page=reverse("reviews:policy", args=[project.slug]),
    )


def loosened(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The labels of the fields by which fewer people would have to review."""
    loose = {
        "Four eyes": before["four_eyes"] and not after["four_eyes"],
        "Reviewers per sample": after["reviewers_per_sample"] < before["reviewers_per_sample"],
    }
    return [label for label, is_loose in loose.items() if is_loose]


@transaction.atomic
def set_policy(*, project: Project, by: Any, reason: str, **fields: Any) -> ReviewPolicy | Proposal:
    """Changes the project's policy; the audit log has it before and after, and why. Needs the role
    owner. What lets fewer people review is a proposal, which a second person approves, unless the
    project has one person. Raises PolicyError, also for a change without a reason, ProposalError.
    """
    get_membership(by, project.slug, Role.OWNER)
    _lock(project)
    before = policy_of(project)
    after = before | fields
    _check(after)
    if after != before and not reason.strip():
        raise PolicyError("Enter a reason for the change; the audit log keeps it.")
    company = companies_of([project.pk])[project.pk]
    if (loose := loosened(before, after)) and not company.alone:
        return proposals.propose(
            rule_of(project),
            before=before,
            values=after,
            loosened=loose,
            instead=_wait_for(company),
            reason=reason.strip(),
            by=by,
        )
    return _store(project, before, after, reason.strip(), by)


@transaction.atomic
def approve_policy(*, project: Project, proposal: int, by: Any) -> ReviewPolicy:
    """The second person's consent: the change applies. Raises ProposalError, PermissionDenied."""
    rule = rule_of(project)
    get_membership(by, project.slug, rule.approver)
    _lock(project)
    row = proposals.accept(rule, proposal=proposal, by=by)
    return _store(project, policy_of(project), row.values, row.reason, by, row.by)


@transaction.atomic
def withdraw_policy(*, project: Project, proposal: int, by: Any) -> None:
    """Raises ProposalError."""
    _lock(project)
    proposals.withdraw(rule_of(project), proposal=proposal, by=by)


def _wait_for(company: Company) -> str:
    left = company.left
    return f"wait: {left.name} counts until {left.counts_until:%-d %B %Y}" if left else "wait"


def _lock(project: Project) -> None:
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)


def _store(
    project: Project,
    before: dict[str, Any],
    after: dict[str, Any],
    reason: str,
    by: Any,
    proposer: Any = None,
) -> ReviewPolicy:
    policy, _ = ReviewPolicy.objects.update_or_create(
        project=project, defaults=after | {"updated_by": proposer or by}
    )
    if after != before:
        proposals.close(rule_of(project))
        audit(
            "review.policy_changed",
            project=project,
            by=by,
            target=policy,
            before=before,
            after=after,
            reason=reason,
            proposed_by=actor_name(proposer) if proposer else None,
        )
    return policy


def _check(fields: dict[str, Any]) -> None:
    if unknown := fields.keys() - set(FIELDS):
        raise PolicyError(f"A policy has no “{min(unknown)}”.")
    if fields["min_samples"] < 1 or not 1 <= fields["reviewers_per_sample"] <= 9:
        raise PolicyError("A policy needs at least one sample, and one to nine reviewers for each.")
    shares = (
        fields["min_accuracy"],
        fields["max_false_positive_rate"],
        fields["max_unreviewed_share"],
    )
    if not -1 <= fields["min_kappa"] <= 1 or not all(0 <= share <= 1 for share in shares):
        raise PolicyError("κ lies between −1 and 1, a rate between 0 and 100%.")
