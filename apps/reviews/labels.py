"""What people said of a review's samples, read in two queries, and when their word is settled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from apps.reviews.agreement import Judged
from apps.reviews.models import Judgement, ReviewItem


@dataclass(frozen=True)
class Word:
    """One person's word: blind, and on the score once it was shown (None: not asked yet)."""

    by: int
    success: bool
    agrees: bool | None
    at: datetime
    agreed_at: datetime | None = None


@dataclass(frozen=True)
class Label:
    """An item's score beside what people said of it."""

    item: int
    stratum: str
    reward: float
    success: bool
    ruling: bool | None
    words: tuple[Word, ...] = ()
    task: str = ""
    run: str = ""

    def second_thoughts(self, word: Word) -> bool:
        """Whether someone's answer on the score goes against the word they had given blind."""
        return word.agrees is not None and word.agrees != (word.success == self.success)

    def is_complete(self, needed: int) -> bool:
        """Whether as many people have judged it as it needs."""
        return len(self.words) >= needed

    def differs(self, needed: int) -> bool:
        """Whether it waits for a ruling: its reviewers did not say the same."""
        return self.ruling is None and self.is_complete(needed) and len({word.success for word in self.words}) > 1

    def may_be_ruled(self, needed: int) -> bool:
        """Whether it is for an adjudicator: it waits for a ruling, has one, or a reviewer of it had second thoughts."""
        if self.ruling is not None or self.differs(needed):
            return True
        return self.is_complete(needed) and any(self.second_thoughts(word) for word in self.words)

    def person(self, needed: int) -> bool | None:
        """What people say of it as one: the ruling, or what all its reviewers said; None while that is open."""
        if self.ruling is not None:
            return self.ruling
        return self.words[0].success if self.is_complete(needed) and not self.differs(needed) else None

    def settled(self, needed: int) -> Judged:
        """What counts: the people's word as one, without whose it is."""
        return Judged(str(self.item), self.success, self.reward, self.person(needed), self.differs(needed))

    def by(self, user: int) -> Word | None:
        return next((word for word in self.words if word.by == user), None)


def labels_of(reviews: Iterable[int]) -> dict[int, list[Label]]:
    """{review: its labels, in the order of the queue}."""
    wanted = list(reviews)
    words: dict[int, list[Word]] = defaultdict(list)
    said = Judgement.objects.filter(item__review__in=wanted).order_by("at")
    for item, *word in said.values_list("item", "by", "success", "agrees", "at", "agreed_at"):
        words[item].append(Word(*word))
    found: dict[int, list[Label]] = {pk: [] for pk in wanted}
    items = ReviewItem.objects.filter(review__in=wanted).order_by("position")
    columns = ("review", "pk", "stratum", "reward", "success", "ruling")
    for review, item, *rest, task, run in items.values_list(*columns, "sample__task", "sample__run"):
        found[review].append(Label(item, *rest, words=tuple(words[item]), task=str(task), run=str(run)))
    return found
