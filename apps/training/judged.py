"""Turns judged answers into training data for preference methods: pairs, labelled answers, good
answers. Pure.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from workers.lib.storable import storable

Shape = Literal["pairs", "labels", "answers"]
MOST_PER_PROMPT = 4  # examples per request and source, so that frequent requests do not dominate

SAME = "the same answer on both sides"
EMPTY = "an empty answer"
BOTH = "the same answer judged both right and wrong"
ALONE = "no answer with the opposite verdict for the same request"


@dataclass(frozen=True)
class Judged:
    """One answer to one request. `request` identifies the conversation, whichever run it is from;
    `messages` is the conversation without the harness's part, and only set if no task contains it.
    """

    source: str
    request: str
    answer: str
    good: bool
    reward: float = 0.0
    task: UUID | None = None
    trajectory: UUID | None = None
    messages: list[dict] = field(default_factory=list, compare=False)
    tools: list[dict] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Example:
    """The input of one training step: `data` has {chosen, rejected}, {answer, good} or {answer},
    and {messages, tools} if no task has them."""

    source: str
    data: dict[str, Any]
    task: UUID | None = None
    trajectory: UUID | None = None

    @property
    def texts(self) -> list[str]:
        return [self.data[name] for name in ("chosen", "rejected", "answer") if name in self.data]


def examples_of(
    answers: Iterable[Judged], shape: Shape, *, extremes: frozenset[str] = frozenset()
) -> tuple[list[Example], Counter[str]]:
    """(examples, {reason: number of answers left out}). Duplicates are dropped; sources come in the
    given order.

    Of the sources in `extremes`, only the best and the worst answer to a request count.
    """
    left_out: Counter[str] = Counter()
    found: dict[tuple, Example] = {}
    for (source, request), group in _by_request(answers, left_out).items():
        good = sorted((one for one in group if one.good), key=lambda one: -one.reward)
        bad = sorted((one for one in group if not one.good), key=lambda one: one.reward)
        if source in extremes:
            good, bad = good[:1], bad[:1]
        for key, example in _made(good, bad, shape, left_out):
            found.setdefault((request, *key), example)
    return list(found.values()), left_out


def kept_aside(groups: Sequence[str], share: float, kinds: Sequence[Any] = ()) -> set[int]:
    """The positions of the examples held back for validation, given the group of each.

    Whole groups are held back, in the order of a hash of their names (the same for every seed),
    until the share is reached. At least one group trains, and with two or more groups at least one
    is held back. Every kind in `kinds` keeps an example that trains (KTO cannot learn from good
    answers alone), so a group with all remaining examples of some kind is not held back.
    """
    if not share:
        return set()
    names = sorted(set(groups), key=lambda name: hashlib.sha256(name.encode()).digest())
    places: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(groups):
        places[name].append(at)
    aside: set[int] = set()
    left = Counter(kinds)  # that still train
    for name in names[:-1]:
        if len(aside) >= share * len(groups):
            break
        taken = Counter(kinds[at] for at in places[name]) if kinds else Counter()
        if all(left[kind] > n for kind, n in taken.items()):
            left -= taken
            aside.update(places[name])
    return aside


def _by_request(
    answers: Iterable[Judged], left_out: Counter[str]
) -> dict[tuple[str, str], list[Judged]]:
    """{(source, request): its answers}, without empty answers, duplicates, and answers judged both
    right and wrong.
    """
    groups: dict[tuple[str, str], dict[str, Judged]] = defaultdict(dict)
    torn: set[tuple[str, str, str]] = set()
    for one in answers:
        text = storable(one.answer).strip()
        if not text:
            left_out[EMPTY] += 1
            continue
        known = groups[one.source, one.request].setdefault(text, one)
        if known.good != one.good:
            torn.add((one.source, one.request, text))
    if torn:
        left_out[BOTH] += len(torn)
    for source, request, text in torn:
        del groups[source, request][text]
    return {key: list(group.values()) for key, group in groups.items()}


def _made(
    good: list[Judged], bad: list[Judged], shape: Shape, left_out: Counter[str]
) -> Iterable[tuple[tuple, Example]]:
    if shape == "answers":
        for one in good[:MOST_PER_PROMPT]:
            yield (_text(one),), _example(one, {"answer": _text(one)})
    elif shape == "labels":
        for one in [*good[:MOST_PER_PROMPT], *bad[:MOST_PER_PROMPT]]:
            yield (_text(one),), _example(one, {"answer": _text(one), "good": one.good})
    elif not good or not bad:
        if alone := len(good) + len(bad):
            left_out[ALONE] += alone
    else:
        for at, worse in enumerate(bad[:MOST_PER_PROMPT]):
            better = good[at % len(good)]
            yield (
                (_text(better), _text(worse)),
                _example(worse, {"chosen": _text(better), "rejected": _text(worse)}),
            )


def _text(one: Judged) -> str:
    return storable(one.answer).strip()


def _example(one: Judged, data: dict[str, Any]) -> Example:
    own = {} if one.task else {"messages": one.messages, "tools": one.tools}
    return Example(one.source, own | data, one.task, one.trajectory)
