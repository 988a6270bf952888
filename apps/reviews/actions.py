"""Actions of reviews: open, judge, rule, undo, override. The lock itself is in `lock`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from apps.core.access import get_membership
from apps.core.actions import audit
from apps.core.bus import Event, publish
from apps.core.models import Role
from apps.environments.models import Verifier
from apps.environments.scorer import scorer_of
from apps.evals.holdout.view_log import record_view
from apps.evals.models import EvalRun, Split
from apps.notifications.actions import tell_of_override
from apps.reviews.drawing import draw, scope_of
from apps.reviews.evidence import (
    environment_locks,
    lock_of,
    lock_state,
    lock_states,
    require_unlocked,
)
from apps.reviews.lock import Lock, ReviewError, TrainingLocked
from apps.reviews.models import Judgement, LockOverride, ReviewItem, RewardReview, SentOutput
from apps.reviews.policy import policy_in_force
from apps.reviews.pool import Scores
from apps.reviews.reservations import holder_of, needed_of
from apps.reviews.scores import Scored

__all__ = [
    "Lock",
    "ReviewError",
    "TrainingLocked",
    "answer",
    "environment_locks",
    "judge",
    "lock_of",
    "lock_state",
    "lock_states",
    "open_review",
    "override_lock",
    "require_unlocked",
    "rule",
    "send_outputs",
    "undo",
]

SIZE = 60


class OutputJudged(Event):
    """People have judged an output of a training run. Published after the commit."""

    review: RewardReview


@transaction.atomic
def open_review(
    *,
    runs: Sequence[EvalRun],
    by: Any,
    verifier: Verifier | None = None,
    size: int = SIZE,
    seed: int = 0,
) -> RewardReview:
    """A blind queue of samples of finished evaluations, stratified over score, bucket and model;
    the project's policy is frozen in it. `verifier` is the runs' by default. Raises ReviewError."""
    drawn = draw(runs=runs, verifier=verifier, size=size, seed=seed)
    verifier = verifier or runs[0].environment.verifier
    review = RewardReview.objects.create(
        project=verifier.project,
        verifier=verifier,
        policy=policy_in_force(verifier.project),
        seed=seed,
        created_by=by,
        thin=drawn.sampling.notes,
        scope=scope_of(runs, verifier)
        | {"pool": [vars(Scores.of(share)) for share in drawn.sampling.strata]},
    )
    review.runs.set(runs)
    ReviewItem.objects.bulk_create(
        _item(review, place, one) for place, one in enumerate(drawn.items)
    )
    for eval_set in {run.eval_set for run in runs if run.split == Split.HOLDOUT}:
        record_view(eval_set=eval_set, by=by, detail=f"reward review of {verifier}")
    audit(
        "review.opened",
        project=review.project,
        by=by,
        target=review,
        verifier=str(verifier),
        hash=verifier.hash,
        n=len(drawn.items),
        drawn_again=drawn.sampling.again,
        runs=[str(run.pk) for run in runs],
    )
    return review


def _item(review: RewardReview, position: int, one: Scored) -> ReviewItem:
    return ReviewItem(
        review=review,
        sample=one.sample,
        position=position,
        stratum=one.stratum,
        reward=one.reward,
        components=one.components,
        success=one.success,
    )


@transaction.atomic
def send_outputs(
    *,
    verifier: Verifier,
    outputs: Sequence[SentOutput],
    training: dict[str, str],
    by: Any,
    seed: int = 0,
) -> tuple[RewardReview, int]:
    """Adds outputs of a training run to its review's queue, in the given order: a new review, or
    the run's last one while no newer version of the verifier scores. Returns it and how many were
    new: existing ones are not judged twice.
    """
    rows = RewardReview.objects.select_for_update().filter(
        verifier=verifier, project=verifier.project_id, scope__training__run=training["run"]
    )
    review = rows.first()
    if review is None:
        review = RewardReview.objects.create(
            project=verifier.project,
            verifier=verifier,
            policy=policy_in_force(verifier.project),
            seed=seed,
            created_by=by,
            scope={"runs": {}, "training": training},
        )
        audit(
            "review.opened",
            project=review.project,
            by=by,
            target=review,
            verifier=str(verifier),
            hash=verifier.hash,
            n=len(outputs),
            drawn_again=0,
            runs=[],
            training=training["run"],
        )
    known = set(review.items.values_list("sent__source__rollout", flat=True))
    fresh = [one for one in outputs if one.source["rollout"] not in known]
    SentOutput.objects.bulk_create(fresh)
    place = review.items.count()
    ReviewItem.objects.bulk_create(
        ReviewItem(
            review=review,
            sent=one,
            position=place + at,
            stratum=f"step {one.source['step']}",
            reward=one.reward,
            components=one.components,
            success=one.success,
        )
        for at, one in enumerate(fresh)
    )
    if fresh:
        audit(
            "review.outputs_sent",
            project=review.project,
            by=by,
            target=review,
            n=len(fresh),
            training=training["run"],
        )
    return review, len(fresh)


def _notify_judged(review: RewardReview) -> None:
    if review.training:
        transaction.on_commit(lambda: publish(OutputJudged(review)))


@transaction.atomic
def judge(*, item: ReviewItem, success: bool, by: Any, note: str = "") -> Judgement:
    """A person's blind verdict on an item: final, since the score is shown then. Raises
    ReviewError.
    """
    item = _locked(item)
    said = {judgement.by_id: judgement for judgement in item.judgements.all()}
    if mine := said.get(by.pk):
        if mine.success != success:
            raise ReviewError(
                "You have judged this sample and seen its score: your verdict is locked."
            )
        return mine
    if other := holder_of(item, by):
        raise ReviewError(f"{other} is judging this sample. Nothing was changed.")
    if len(said) >= needed_of(item.review) or item.ruling is not None:
        raise ReviewError("This sample needs no more judgements. Nothing was changed.")
    judgement = Judgement.objects.create(item=item, by=by, success=success, note=note.strip())
    audit("review.judged", project=item.review.project, by=by, target=item, success=success)
    _notify_judged(item.review)
    return judgement


@transaction.atomic
def answer(*, item: ReviewItem, agrees: bool, by: Any, reason: str = "") -> Judgement:
    """Whether the score, now shown, is right according to someone who has judged the item. Raises
    ReviewError.
    """
    item = _locked(item)
    mine = item.judgements.filter(by=by).first()
    if mine is None:
        raise ReviewError("Judge the output first; the score is shown afterwards.")
    if not agrees and not reason.strip():
        raise ReviewError("Enter a reason: say what is wrong with the score.")
    if mine.agrees is not None and mine.agrees != agrees:
        raise ReviewError("You have already answered. Undo (u) to answer again.")
    mine.agrees, mine.reason, mine.agreed_at = agrees, reason.strip(), timezone.now()
    mine.save(update_fields=["agrees", "reason", "agreed_at"])
    _off_the_screen(item, by)
    audit(
        "review.answered",
        project=item.review.project,
        by=by,
        target=item,
        agrees=agrees,
        reason=mine.reason,
    )
    return mine


@transaction.atomic
def undo(*, review: RewardReview, by: Any) -> ReviewItem | None:
    """Takes back the person's last answer on a score; the blind verdict stays. Returns its item, or
    None if there is no answer. Raises ReviewError if the item has a ruling."""
    rows = Judgement.objects.select_for_update(of=("self",)).select_related("item__review__project")
    last = (
        rows.filter(item__review=review, by=by, agrees__isnull=False)
        .order_by("-agreed_at", "-pk")
        .first()
    )
    if last is None:
        return None
    if last.item.ruling is not None:
        raise ReviewError("Your last sample has since been ruled on, so your answer is kept.")
    audit(
        "review.undone",
        project=review.project,
        by=by,
        target=last.item,
        agrees=last.agrees,
        reason=last.reason,
    )
    last.agrees, last.reason, last.agreed_at = None, "", None
    last.save(update_fields=["agrees", "reason", "agreed_at"])
    return last.item


@transaction.atomic
def rule(*, item: ReviewItem, success: bool, reason: str, by: Any) -> ReviewItem:
    """Settles an item whose reviewers differ, or one of whom had second thoughts; this counts as
    the people's verdict. By a reviewer who has not judged it, or an owner. Ruling again replaces
    it. Raises ReviewError, and PermissionDenied below the role reviewer."""
    item = _locked(item)
    membership = get_membership(by, item.review.project.slug, Role.REVIEWER)
    said = list(item.judgements.all())
    open_to_it = len({judgement.success for judgement in said}) > 1 or any(
        one.second_thoughts for one in said
    )
    if not open_to_it or len(said) < needed_of(item.review):
        raise ReviewError("There is nothing to rule on: the reviewers of this sample agree.")
    if any(judgement.by_id == by.pk for judgement in said) and not membership.may(Role.OWNER):
        raise ReviewError("You judged this sample. Someone else, or an owner, must rule on it.")
    if not reason.strip():
        raise ReviewError("Enter a reason for the ruling.")
    item.ruling, item.ruled_by, item.ruled_at, item.ruling_reason = (
        success,
        by,
        timezone.now(),
        reason.strip(),
    )
    item.save(update_fields=["ruling", "ruled_by", "ruled_at", "ruling_reason"])
    audit(
        "review.ruled",
        project=item.review.project,
        by=by,
        target=item,
        success=success,
        reason=item.ruling_reason,
    )
    _notify_judged(item.review)
    return item


def _locked(item: ReviewItem) -> ReviewItem:
    rows = ReviewItem.objects.select_for_update(of=("self",)).select_related("review__project")
    return rows.prefetch_related("judgements").get(pk=item.pk)


def _off_the_screen(item: ReviewItem, by: Any) -> None:
    ReviewItem.objects.filter(pk=item.pk, reserved_by=by).update(
        reserved_by=None, reserved_until=None
    )


@transaction.atomic
def override_lock(*, verifier: Verifier, reason: str, by: Any) -> LockOverride:
    """Lets a verifier train without a passed review, in the environments that use it now. Needs the
    role owner and a reason; recorded in the audit log. If the policy requires four eyes, somebody
    else has to start the training."""
    get_membership(by, verifier.project.slug, Role.OWNER)
    if not reason.strip():
        raise ReviewError("Enter a reason for training without a passed review.")
    scope = [
        scorer_of(environment)
        for environment in verifier.environments.select_related("verifier", "project")
    ]
    override = LockOverride.objects.create(
        verifier=verifier, by=by, reason=reason.strip(), scope=scope
    )
    audit(
        "review.lock_overridden",
        project=verifier.project,
        by=by,
        target=verifier,
        verifier=str(verifier),
        hash=verifier.hash,
        reason=override.reason,
    )
    tell_of_override(
        project=verifier.project,
        by=by,
        subject=f"{verifier} was unlocked for training without a passed review",
        page=reverse("reviews:verifier", args=[verifier.project.slug, verifier.pk]),
        key=f"lock_override:{override.pk}",
    )
    return override
