"""Which request a new one looks like, though it is not certainly the same: in other words, in
another language, of another customer. Pure.

It is only a suggestion for a person. Compared are the changes that should result, with a
placeholder for each identifier, number and date; the words of the users, without these; and the
identifiers, numbers, dates and names that both mention, which are the same in every language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apps.evals.near_duplicates.calls import leaves_of, words_of
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.text import content, is_slot, names_in

SLOT = "…"
SAME_WORDS = 0.3  # Jaccard index from which on words alone are alike
SOME_WORDS = 0.2  # and with the same changes
SAME_SLOTS = 0.5  # share of the slots of the shorter text, where the words are of two languages
FEWEST_SLOTS, IDENTIFIER = 2, 4  # IDENTIFIER: characters
OTHER_LANGUAGE = 0.05  # Jaccard index of the words up to which texts may be of two languages
CHANGES, WORDS, SLOTS, JUDGED = (
    "the same changes, with other values",
    "nearly the same words",
    "the same names and numbers, in other words",
    "the judge says that it asks for the same",
)
Changes = Counter[tuple[str, frozenset[tuple[str, str]]]]


@dataclass(frozen=True)
class Wish:
    """What a request asks for. `changes` is None if it is not known which should result."""

    words: frozenset[str]
    slots: frozenset[str]
    changes: Changes | None

    @classmethod
    def of(cls, users: Iterable[dict[str, Any]], expected: dict[str, Any]) -> Wish:
        texts = [plain(words_of(message)) for message in users]
        found = {word for text in texts for word in content(text)}
        slots = {word for word in found if is_slot(word)}.union(*map(names_in, texts))
        return cls(frozenset(found - slots), frozenset(slots), _changes(expected))


def _changes(expected: dict[str, Any]) -> Changes | None:
    if "lookups" not in expected or not expected.get("calls"):
        return None  # not known, or that nothing is changed, which does not tell wishes apart
    return Counter(
        (call["tool"], frozenset((path, _shape(leaf)) for path, leaf in leaves_of(call["args"])))
        for call in expected["calls"]
    )


def _shape(leaf: Any) -> str:
    """A choice stays as it is; what differs from customer to customer is a placeholder."""
    text = str(leaf).casefold()
    is_choice = isinstance(leaf, bool) or (isinstance(leaf, str) and text.isidentifier())
    return text if is_choice and not any(map(str.isdigit, text)) else SLOT


def likeness(one: Wish, other: Wish) -> tuple[float, str] | None:
    """(in 0 to 1, why); None if they do not look like the same request."""
    words = _jaccard(one.words, other.words)
    shared = one.slots & other.slots
    slots = len(shared) / max(1, min(len(one.slots), len(other.slots)))
    if one.changes is not None and other.changes is not None:
        if one.changes != other.changes:
            return None
        if words >= SOME_WORDS or slots >= SAME_SLOTS:
            return max(words, slots), CHANGES
        return None
    if words >= SAME_WORDS:
        return words, WORDS
    if (
        words <= OTHER_LANGUAGE
        and len(shared) >= FEWEST_SLOTS
        and any(map(_is_identifier, shared))
        and slots >= SAME_SLOTS
    ):
        return slots, SLOTS
    return None


def _is_identifier(slot: str) -> bool:
    return len(slot) >= IDENTIFIER and any(map(str.isdigit, slot))


def nearest(wish: Wish, others: Iterable[tuple[Any, Wish]], most: int) -> list[Any]:
    """The others that share most with it, whatever they want."""
    scored = [
        (_jaccard(wish.words | wish.slots, other.words | other.slots), at, key)
        for at, (key, other) in enumerate(others)
    ]
    found = sorted((item for item in scored if item[0]), key=lambda item: (-item[0], item[1]))
    return [key for _, _, key in found[:most]]


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    either = len(one | other)
    return len(one & other) / either if either else 0.0


def likest(wish: Wish, others: Iterable[tuple[Any, Wish]]) -> tuple[Any, str] | None:
    """(the other that looks most like it, why)"""
    found = [(like[0], at, like[1]) for at, like in _compared(wish, others)]
    best = max(found, key=lambda item: item[0], default=None)
    return best and (best[1], best[2])


def _compared(
    wish: Wish, others: Iterable[tuple[Any, Wish]]
) -> Iterator[tuple[Any, tuple[float, str]]]:
    for key, other in others:
        if like := likeness(wish, other):
            yield key, like
