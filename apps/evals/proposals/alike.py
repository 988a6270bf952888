"""Which request a new one looks like, though it is not certainly the same: in other words, in
another language, of another customer. Pure.

It is only a suggestion for a person. Compared are the changes that should result, with a
placeholder for each identifier, number and date; the words of the users, without these; the
identifiers, numbers, dates and names that both mention, which are the same in every language; and
what their failed runs looked up and tried to change.

No suggestion is better than a wrong one. Words alone count only if the texts share enough of them,
and not if their numbers differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apps.evals.near_duplicates.calls import leaves_of, words_of
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.text import FILLERS, content, is_slot, is_unspaced, names_in, words
from apps.failures.rules.reading import kind_of

SLOT = "…"
SAME_WORDS = 0.3  # Jaccard index from which on words alone are alike
SAME_UNFILTERED = 0.5  # and where function words count, since the language has no list of them
FILTERED = 0.2  # share of fillers from which on a text counts as one of the language of the list
FEWEST_SHARED = 3.0  # words and slots that both mention, for words alone to count
PAIR = 0.5  # words that a pair of letters counts as, in a script without spaces
SOME_WORDS = 0.2  # and with the same changes
SAME_SLOTS = 0.5  # share of the slots of the shorter text, where the words are of two languages
FEWEST_SLOTS, IDENTIFIER = 2, 4  # IDENTIFIER: characters
OTHER_LANGUAGE = 0.05  # Jaccard index of the words up to which texts may be of two languages
THING = re.compile(r"(?=.*\d)(?=.*[^\W\d_])\S{4,80}")  # an identifier: letters and digits
SAME_OBJECTS, FEWEST_OBJECTS = 0.5, 2  # share of the objects of the shorter run; at least
CHANGES, TRIED, LOOKED_UP, WORDS, SLOTS, JUDGED = (
    "the same changes, with other values",
    "both failed runs tried the same changes on the same things",
    "both failed runs looked up the same things, in similar words",
    "nearly the same words",
    "the same names and numbers, in other words",
    "the judge says that it asks for the same",
)
Changes = Counter[tuple[str, frozenset[tuple[str, str]]]]


@dataclass(frozen=True)
class Wish:
    """What a request asks for. `changes` is None if it is not known which should result. Its failed
    run called the tools `tried` to change the things (identifiers) `touched`; `looked_up` are those
    of all its calls.
    """

    words: frozenset[str]
    slots: frozenset[str]
    changes: Changes | None
    is_filtered: bool  # whether `words` are without the function words of their language
    tried: frozenset[str] = frozenset()
    touched: frozenset[str] = frozenset()
    looked_up: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        users: Iterable[dict[str, Any]],
        expected: dict[str, Any],
        recorded: Iterable[dict[str, Any]] = (),
    ) -> Wish:
        """`recorded` are the calls of its failed run, as a replay returns them."""
        texts = [plain(words_of(message)) for message in users]
        found = {word for text in texts for word in content(text) if not _is_ending(word)}
        names = (names_in(text, is_strict=True) for text in texts)
        slots = {word for word in found if is_slot(word)}.union(*names)
        spoken = [word for text in texts for word in words(text)]
        fillers = sum(word in FILLERS for word in spoken)
        return cls(
            frozenset(found - slots - FILLERS),
            frozenset(slots),
            _changes(expected),
            fillers >= FILTERED * len(spoken),
            *_facts(recorded),
        )


def _facts(
    recorded: Iterable[dict[str, Any]],
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(tools that change something, the things they were called on, the things of all calls)."""
    calls = [item for item in recorded if isinstance(item.get("tool"), str)]
    changes = [call for call in calls if kind_of(call["tool"]) == "write"]
    return frozenset(call["tool"] for call in changes), _things(changes), _things(calls)


def _things(calls: Iterable[dict[str, Any]]) -> frozenset[str]:
    texts = {str(leaf).casefold() for call in calls for _, leaf in leaves_of(call.get("args"))}
    return frozenset(text for text in texts if THING.fullmatch(text))


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
    shared, slots = one.slots & other.slots, _overlap(one.slots, other.slots)
    if one.changes is not None and other.changes is not None:
        if one.changes != other.changes:
            return None
        if words >= SOME_WORDS or slots >= SAME_SLOTS:
            return max(words, slots), CHANGES
        return None
    if one.tried and one.tried == other.tried and _same_things(one.touched, other.touched):
        return max(words, SAME_OBJECTS), TRIED
    if words >= SOME_WORDS and _same_things(one.looked_up, other.looked_up):
        return words, LOOKED_UP
    if _same_words(one, other, words):
        return words, WORDS
    if (
        words <= OTHER_LANGUAGE
        and len(shared) >= FEWEST_SLOTS
        and any(map(_is_identifier, shared))
        and slots >= SAME_SLOTS
    ):
        return slots, SLOTS
    return None


def _same_things(one: frozenset[str], other: frozenset[str]) -> bool:
    return len(one & other) >= FEWEST_OBJECTS and _overlap(one, other) >= SAME_OBJECTS


def _same_words(one: Wish, other: Wish, words: float) -> bool:
    is_filtered = one.is_filtered and other.is_filtered
    if words < (SAME_WORDS if is_filtered else SAME_UNFILTERED):
        return False
    numbers = [{slot for slot in wish.slots if _is_number(slot)} for wish in (one, other)]
    if all(numbers) and _overlap(*numbers) < SAME_SLOTS:
        return False
    shared = (one.words & other.words) | (one.slots & other.slots)
    return sum(map(_information, shared)) >= FEWEST_SHARED


def _information(word: str) -> float:
    """In words."""
    return PAIR if is_unspaced(word) else 1.0


def _is_ending(word: str) -> bool:
    """Pairs of letters with hiragana are mostly endings and particles."""
    return is_unspaced(word) and any("\u3040" <= char <= "\u309f" for char in word)


def _is_number(slot: str) -> bool:
    return any(map(str.isdigit, slot))


def _overlap(one: Collection[str], other: Collection[str]) -> float:
    """The share of the shorter that both have."""
    return len(set(one) & set(other)) / max(1, min(len(one), len(other)))


def _is_identifier(slot: str) -> bool:
    return len(slot) >= IDENTIFIER and _is_number(slot)


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
