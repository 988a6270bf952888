"""The lock that every training run asks: a passed review under the project's policy, and passed probes, or an override."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import Q

from apps.environments.models import Verifier
from apps.reviews.agreement import Agreement, Verdict, decide
from apps.reviews.labels import Label, labels_of
from apps.reviews.models import LockOverride, ProbeRun, RewardReview
from apps.reviews.policy import policies_of

NOBODY = "Its scores have not been reviewed yet."


class ReviewError(Exception):
    """Something that may not be done to a review; the message is a sentence for the screen."""


class TrainingLocked(ReviewError):
    """The verifier may not train yet; the message says why and what opens the lock."""


@dataclass(frozen=True)
class Lock:
    """Whether a verifier version may train. `reasons` are the policy's unmet conditions, which an override outweighs."""

    locked: bool
    why: str
    review: RewardReview | None = None
    agreement: Agreement | None = None
    override: LockOverride | None = None
    probe: ProbeRun | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        return "locked" if self.locked else "override" if self.override and self.reasons else "unlocked"


def verdict(review: RewardReview, labels: list[Label], policy: dict[str, Any]) -> Verdict:
    """The policy on a review, without the probes. Each reason is a condition that is not met, in words."""
    needed = policy["reviewers_per_sample"]
    settled = [label.settled(needed) for label in labels]
    found = decide(policy | {"kappa_on": policy["kappa_rule"]}, settled)
    waiting = sum(label.differs(needed) for label in labels)
    reasons = [*_of_people(review, needed, waiting), *found.reasons]
    return replace(found, passed=not reasons, reasons=reasons, undecided=waiting)


def _of_people(review: RewardReview, needed: int, waiting: int) -> list[str]:
    asked = review.policy.get("reviewers_per_sample", 1)
    if asked < needed:
        return [f"The policy asks for {needed} people a sample; this review was opened with {asked}. Open a new one."]
    if waiting:
        return [f"{waiting} sample{'s wait' if waiting > 1 else ' waits'} for a ruling: the reviewers differ."]
    return []


def _of_probes(policy: dict[str, Any], probe: ProbeRun | None) -> list[str]:
    if not policy["probes_must_pass"]:
        return []
    if probe is None:
        return ["The hack probes have not been run on this verifier."]
    if not probe.failed:
        return []
    names = dict.fromkeys(one["probe"] for one in probe.result.get("failed", []) if one.get("severity") == "high")
    what = f": {', '.join(name.replace('_', ' ') for name in names)}" if names else ""
    return [f"Its probes found {probe.failed} hole{'s' if probe.failed > 1 else ''}{what}."]


def lock_states(verifiers: Iterable[Verifier]) -> dict[int, Lock]:
    """{verifier's pk: its lock}, in six queries for any number of them."""
    rows = list(verifiers)
    policies = policies_of(row.project_id for row in rows)
    reviews = _newest_reviews(rows)
    labels = labels_of(review.pk for review in reviews.values())
    probes, overrides = _newest_probes(rows), _newest_overrides(rows)
    return {
        row.pk: _lock(
            policies[row.project_id],
            reviews.get(row.pk),
            labels.get(reviews[row.pk].pk, []) if row.pk in reviews else [],
            probes.get((row.project_id, row.hash)),
            overrides.get(row.pk),
        )
        for row in rows
    }


def lock_state(verifier: Verifier) -> Lock:
    return lock_states([verifier])[verifier.pk]


def require_unlocked(verifier: Verifier) -> Lock:
    """Raises TrainingLocked where the verifier may not train."""
    lock = lock_state(verifier)
    if lock.locked:
        raise TrainingLocked(
            f"Training with {verifier} is locked. {lock.why} Judge its samples under Reward review, "
            "or let an admin override the lock with a reason."
        )
    return lock


def _newest_reviews(verifiers: list[Verifier]) -> dict[int, RewardReview]:
    rows = RewardReview.objects.filter(verifier__in=verifiers).order_by("verifier_id", "-created_at", "-pk")
    return {row.verifier_id: row for row in rows.distinct("verifier_id")}


def _newest_probes(verifiers: list[Verifier]) -> dict[tuple[int, str], ProbeRun]:
    """The newest that has ended with a report, of each content: a verifier of another name may have the same."""
    same = Q(project__in={row.project_id for row in verifiers}, verifier__hash__in={row.hash for row in verifiers})
    rows = ProbeRun.objects.filter(same, failed__isnull=False).select_related("verifier")
    newest = rows.order_by("project_id", "verifier__hash", "-created_at").distinct("project_id", "verifier__hash")
    return {(row.project_id, row.verifier.hash): row for row in newest}


def _newest_overrides(verifiers: list[Verifier]) -> dict[int, LockOverride]:
    rows = LockOverride.objects.filter(verifier__in=verifiers).select_related("by")
    return {row.verifier_id: row for row in rows.order_by("verifier_id", "-at").distinct("verifier_id")}


def _lock(
    policy: dict[str, Any],
    review: RewardReview | None,
    labels: list[Label],
    probe: ProbeRun | None,
    override: LockOverride | None,
) -> Lock:
    found = verdict(review, labels, policy) if review else None
    reasons = [*(found.reasons if found else [NOBODY]), *_of_probes(policy, probe)]
    agreement = found.agreement if found else None
    seen = {"review": review, "agreement": agreement, "override": override, "probe": probe, "reasons": reasons}
    if not reasons:
        return Lock(False, f"Passed its review: κ {agreement.kappa:.2f} on {agreement.n} samples.", **seen)
    if override:
        return Lock(False, f"Overridden by {override.by or 'somebody who has left'}: {override.reason}", **seen)
    return Lock(True, " ".join(reasons), **seen)
