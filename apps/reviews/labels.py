"""People's verdicts on a review's samples, read in two queries, and when they are settled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models.functions import Coalesce

from apps.reviews.agreement import Judged
from apps.reviews.models import Judgement, ReviewItem

TASK = Coalesce("sample__task", "sent__task")  # of an item
OUTPUT = Coalesce("sample__output", "sent__output")


@dataclass(frozen=True)
class HumanLabel:
    """One person's verdict: blind, and on the score once it was shown (None: not asked yet)."""

    by: int
    success: bool
    agrees: bool | None
    at: datetime
    agreed_at: datetime | None = None


@dataclass(frozen=True)
class Label:
    """An item's score next to people's verdicts."""

    item: int
    stratum: str
    reward: float
    success: bool
    ruling: bool | None
    answers: tuple[HumanLabel, ...] = ()
    task: str = ""
    run: str = ""

    def second_thoughts(self, answer: HumanLabel) -> bool:
        """Whether someone's answer on the score goes against their blind verdict."""
        return answer.agrees is not None and answer.agrees != (answer.success == self.success)

    def is_complete(self, needed: int) -> bool:
        """Whether as many people have judged it as it needs."""
        return len(self.answers) >= needed

    def differs(self, needed: int) -> bool:
        """Whether it waits for a ruling: its reviewers disagree."""
        return (
            self.ruling is None
            and self.is_complete(needed)
            and len({answer.success for answer in self.answers}) > 1
        )

    def may_be_ruled(self, needed: int) -> bool:
        """Whether it is for an adjudicator: it waits for a ruling, has one, or a reviewer of it had
        second thoughts.
        """
        if self.ruling is not None or self.differs(needed):
            return True
        return self.is_complete(needed) and any(
            self.second_thoughts(answer) for answer in self.answers
        )

    def person(self, needed: int) -> bool | None:
        """People's joint verdict: the ruling, or the unanimous verdict of its reviewers; None while
        that is open.
        """
        if self.ruling is not None:
            return self.ruling
        return (
            self.answers[0].success
            if self.is_complete(needed) and not self.differs(needed)
            else None
        )

    def settled(self, needed: int) -> Judged:
        """What counts: the people's verdict as one, without whose it is."""
        return Judged(
            str(self.item), self.success, self.reward, self.person(needed), self.differs(needed)
        )

    def by(self, user: int) -> HumanLabel | None:
        return next((answer for answer in self.answers if answer.by == user), None)


def labels_of(reviews: Iterable[int]) -> dict[int, list[Label]]:
    """{review: its labels, in the order of the queue}."""
    wanted = list(reviews)
    answers: dict[int, list[HumanLabel]] = defaultdict(list)
    said = Judgement.objects.filter(item__review__in=wanted).order_by("at")
    for item, *answer in said.values_list("item", "by", "success", "agrees", "at", "agreed_at"):
        answers[item].append(HumanLabel(*answer))
    found: dict[int, list[Label]] = {pk: [] for pk in wanted}
    items = ReviewItem.objects.filter(review__in=wanted).order_by("position")
    columns = ("review", "pk", "stratum", "reward", "success", "ruling")
    for review, item, *rest, task, run in items.values_list(*columns, TASK, "sample__run"):
        found[review].append(
            Label(item, *rest, answers=tuple(answers[item]), task=str(task), run=str(run or ""))
        )
    return found
