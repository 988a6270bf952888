"""Which sample a reviewer gets next, who holds which, and what is left. Reads, and the
reservation.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from apps.reviews.models import Judgement, ReviewItem, RewardReview

RESERVED_FOR = timedelta(minutes=10)
TRIES = 5


def needed_of(review: RewardReview) -> int:
    """How many people judge each of its samples: as the policy was when it was opened."""
    return int(review.policy.get("reviewers_per_sample", 1))


def reserve(*, item: ReviewItem, by: Any) -> bool:
    """Puts a sample on the person's screen for RESERVED_FOR. False if it is on somebody else's."""
    now = timezone.now()
    free = (
        Q(reserved_until=None) | Q(reserved_until__lt=now) | Q(reserved_by=by) | Q(reserved_by=None)
    )
    rows = ReviewItem.objects.filter(free, pk=item.pk)
    return bool(rows.update(reserved_by=by, reserved_until=now + RESERVED_FOR))


def release(*, review: RewardReview, by: Any, keep: tuple[int, ...] = ()) -> int:
    """Takes all the review's samples but `keep` off the person's screen."""
    rows = ReviewItem.objects.filter(review=review, reserved_by=by).exclude(pk__in=keep)
    return rows.update(reserved_by=None, reserved_until=None)


def holder_of(item: ReviewItem, user: Any) -> Any:
    """The other person who has it open, if no judgement is left for a second one; otherwise
    None.
    """
    held = item.reserved_by_id and item.reserved_until and item.reserved_until > timezone.now()
    if not held or item.reserved_by_id == user.pk:
        return None
    return item.reserved_by if needed_of(item.review) - item.judgements.count() <= 1 else None


class Queue:
    """One reviewer's order through a review: first what they left half done, then what still needs
    them.
    """

    def __init__(self, review: RewardReview, user: Any) -> None:
        self.review, self.user = review, user

    def mine(self) -> QuerySet[Judgement]:
        return Judgement.objects.filter(item__review=self.review, by=self.user)

    def waiting(self) -> QuerySet[ReviewItem]:
        """What this person may still judge, whoever has it on the screen."""
        said = Count("judgements")
        rows = self.review.items.exclude(judgements__by=self.user).filter(ruling=None)
        return rows.annotate(said=said).filter(said__lt=needed_of(self.review))

    def left(self) -> int:
        """How many this person may still judge or has not answered on."""
        return self.waiting().count() + self.mine().filter(agrees=None).count()

    def next(self, after: int | None = None, skip: int | None = None) -> int | None:
        """The pk of the first free sample after a position, wrapping around; None if none is free.

        One that this person has judged, without saying whether the score is right, comes first.
        """
        half = (
            self.mine()
            .filter(agrees=None)
            .exclude(item=skip)
            .order_by("at")
            .values_list("item", flat=True)
            .first()
        )
        if half:
            return half
        rows = self._free().exclude(pk=skip).order_by("position").values_list("pk", flat=True)
        below = rows.filter(position__gt=after).first() if after is not None else None
        return below or rows.first()

    def take(self, after: int | None = None, skip: int | None = None) -> int | None:
        """The next one, reserved for this person. Another one if somebody was faster."""
        for _ in range(TRIES):
            pk = self.next(after, skip)
            half_done = pk and self.mine().filter(item=pk).exists()
            if pk is None or half_done or reserve(item=ReviewItem(pk=pk), by=self.user):
                return pk
        return None

    def _free(self) -> QuerySet[ReviewItem]:
        held = (
            Q(reserved_until__gte=timezone.now())
            & Q(reserved_by__isnull=False)
            & ~Q(reserved_by=self.user)
        )
        return self.waiting().exclude(held)

    def previous(self, item: ReviewItem) -> int | None:
        """The sample that this person judged before this one; their last one if they have not
        judged this one.
        """
        rows = self.mine().exclude(item=item).order_by("-at")
        here = self.mine().filter(item=item).first()
        if here:
            rows = rows.filter(at__lt=here.at)
        return rows.values_list("item", flat=True).first()


class Progress(NamedTuple):
    """How many of a review's samples have all the judgements they need, and how many only some."""

    judged: int = 0
    begun: int = 0
    samples: int = 0
    needed: int = 1


def progress_of(reviews: list[RewardReview]) -> dict[int, Progress]:
    """{review: its progress}, in one query."""
    needed = {review.pk: needed_of(review) for review in reviews}
    judgements: dict[int, list[int]] = {pk: [] for pk in needed}
    rows = ReviewItem.objects.filter(review__in=needed).annotate(n=Count("judgements"))
    for review, n in rows.order_by().values_list("review_id", "n"):
        judgements[review].append(n)
    return {
        pk: Progress(
            judged=sum(n >= needed[pk] for n in counts),
            begun=sum(0 < n < needed[pk] for n in counts),
            samples=len(counts),
            needed=needed[pk],
        )
        for pk, counts in judgements.items()
    }
