"""What a project asks of a verifier before it may train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import Project, Role
from apps.reviews.models import ReviewPolicy
from apps.reviews.people import Company, companies_of

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


class PolicyError(Exception):
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


@transaction.atomic
def set_policy(*, project: Project, by: Any, reason: str, **fields: Any) -> ReviewPolicy:
    """Changes the project's policy; the audit log has it before and after, and why. Needs the role
    owner. Raises PolicyError, also for a change without a reason."""
    get_membership(by, project.slug, Role.OWNER)
    before = policy_of(project)
    after = before | fields
    _check(after)
    if after != before and not reason.strip():
        raise PolicyError("Enter a reason for the change; the audit log keeps it.")
    policy, _ = ReviewPolicy.objects.update_or_create(
        project=project, defaults=after | {"updated_by": by}
    )
    if after != before:
        audit(
            "review.policy_changed",
            project=project,
            by=by,
            target=policy,
            before=before,
            after=after,
            reason=reason.strip(),
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
