"""Writes of floor 7, and the lock that every training run asks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.models import JobState, Role
from apps.environments.models import Verifier
from apps.evals.models import EvalRun, Sample
from apps.reviews.agreement import DEFAULT_POLICY, Agreement, assess
from apps.reviews.models import Judgement, LockOverride, ReviewItem, RewardReview


class ReviewError(Exception):
    """Something that may not be done to a review; the message is a sentence for the screen."""


class TrainingLocked(ReviewError):
    """The verifier may not train yet; the message says why and what opens the lock."""


@dataclass(frozen=True)
class Lock:
    """Whether a verifier version may train, and why."""

    locked: bool
    why: str
    review: RewardReview | None = None
    agreement: Agreement | None = None
    override: LockOverride | None = None


def stratified(samples: list[Sample], size: int, seed: int) -> list[Sample]:
    """Up to `size` samples, drawn evenly from those the verifier passes, part-credits and fails; shuffled."""
    rng = random.Random(seed)
    strata: dict[tuple[bool, bool], list[Sample]] = {}
    for sample in samples:
        strata.setdefault((sample.success, (sample.reward or 0) > 0), []).append(sample)
    for stratum in strata.values():
        rng.shuffle(stratum)
    chosen: list[Sample] = []
    while len(chosen) < size and any(strata.values()):
        chosen += [stratum.pop() for stratum in strata.values() if stratum]
    chosen = chosen[:size]
    rng.shuffle(chosen)
    return chosen


@transaction.atomic
def open_review(*, run: EvalRun, by: Any, size: int = 60, seed: int = 0) -> RewardReview:
    """A blind queue of scored samples of an evaluation. Raises ReviewError where there are none."""
    if run.state != JobState.SUCCEEDED:
        raise ReviewError("This evaluation has not finished. Its samples can be reviewed once it has.")
    samples = stratified(list(run.samples.filter(masked=False).order_by("pk")), size, seed)
    if not samples:
        raise ReviewError("This evaluation has no scored samples to review.")
    review = RewardReview.objects.create(
        project=run.project, verifier=run.environment.verifier, run=run, policy=DEFAULT_POLICY, created_by=by
    )
    ReviewItem.objects.bulk_create(
        ReviewItem(review=review, sample=sample, position=position) for position, sample in enumerate(samples)
    )
    audit("review.opened", project=run.project, by=by, target=review, verifier=str(review.verifier), n=len(samples))
    return review


@transaction.atomic
def judge(*, item: ReviewItem, success: bool, by: Any, note: str = "") -> Judgement:
    """A person's word on an item. Saying it again replaces it."""
    judgement, _ = Judgement.objects.update_or_create(item=item, by=by, defaults={"success": success, "note": note})
    audit("review.judged", project=item.review.project, by=by, target=item, success=success)
    return judgement


@transaction.atomic
def undo(*, review: RewardReview, by: Any) -> ReviewItem | None:
    """Takes back the person's last judgement; returns its item, or None where there is none."""
    last = Judgement.objects.filter(item__review=review, by=by).select_related("item").first()
    if last is None:
        return None
    audit("review.undone", project=review.project, by=by, target=last.item, success=last.success)
    last.delete()
    return last.item


@transaction.atomic
def override_lock(*, verifier: Verifier, reason: str, by: Any) -> LockOverride:
    """Lets a verifier train without a passed review. Needs the role admin and a reason; stands in the audit log."""
    get_membership(by, verifier.project.slug, Role.ADMIN)
    if not reason.strip():
        raise ReviewError("Say why this verifier may train without a passed review.")
    override = LockOverride.objects.create(verifier=verifier, by=by, reason=reason.strip())
    audit(
        "review.lock_overridden",
        project=verifier.project,
        by=by,
        target=verifier,
        verifier=str(verifier),
        hash=verifier.hash,
        reason=override.reason,
    )
    return override


def agreement_of(review: RewardReview) -> Agreement:
    """Each item counts once: the majority of its judgements, the latest where they are even."""
    pairs = []
    for item in review.items.select_related("sample").prefetch_related("judgements"):
        words = [judgement.success for judgement in item.judgements.all()]  # newest first
        if words:
            yes = sum(words)
            person = words[0] if 2 * yes == len(words) else 2 * yes > len(words)
            pairs.append((person, item.sample.success))
    return assess(pairs, review.policy)


def lock_state(verifier: Verifier) -> Lock:
    review = verifier.reviews.first()
    agreement = agreement_of(review) if review else None
    if agreement and agreement.passed:
        return Lock(False, f"Passed its review: κ {agreement.kappa:.2f} on {agreement.n} samples.", review, agreement)
    override = verifier.overrides.select_related("by").first()
    if override:
        return Lock(False, f"Overridden by {override.by}: {override.reason}", review, agreement, override)
    why = " ".join(agreement.reasons) if agreement else "No one has reviewed its scores yet."
    return Lock(True, why, review, agreement)


def require_unlocked(verifier: Verifier) -> Lock:
    """Raises TrainingLocked where the verifier may not train."""
    lock = lock_state(verifier)
    if lock.locked:
        raise TrainingLocked(
            f"Training with {verifier} is locked. {lock.why} Judge its samples under Reward review, "
            "or let an admin override the lock with a reason."
        )
    return lock
