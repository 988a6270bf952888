"""Whether a stretch of text says a request: every word of it, in order, slips of the keyboard and
small insertions allowed.

A request of the same template with other values is another request. So a word that is replaced by
an unlike one is never forgiven, and where a word that fills a slot (a number, a day, a name, a
value of the expected call) is replaced by a like one, there must be a sign that it is a slip: other
slips beside it, or a spelling that no known word has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property

from apps.evals.near_duplicates.spelling import bones, meant_numbers, one_slip
from apps.evals.near_duplicates.text import (
    DAYS,
    FILLERS,
    MONTHS,
    is_slot,
    names_in,
    spelt_words,
    words,
)

GAP = 4  # words between two parts of a request that still count as one place
LEFT_OUT = 0.05  # of the words that carry the wish
_DATE = re.compile(r"d\d\d-0?(?P<day>\d+)")
LIKE = 0.7  # share of letters in order, of two spellings of a long word
SHORT = 5  # words of a request in which a value one letter off is another value
REACH = 1.6  # how much longer than the request the stretch may be


@dataclass(frozen=True)
class Word:
    """A word as it is spelt, its canonical form, and how a text about the same must treat it."""

    spelt: str
    form: str
    filler: bool = False
    slot: bool = False  # a value: another one makes another task


@dataclass(frozen=True, eq=False)
class Pattern:
    """A request to be searched, as its words."""

    words: tuple[Word, ...]
    values: frozenset[str] = frozenset()  # words of the expected calls
    text: str = ""

    @cached_property
    def forms(self) -> list[str]:
        return [one.form for one in self.words]

    @cached_property
    def alone(self) -> list[str]:
        """The form of each word by itself: a date whose day and month are apart is none."""
        return [form for part in self.text.split() for form in words(part)]

    @cached_property
    def content(self) -> frozenset[str]:
        return frozenset(one.form for one in self.words if not one.filler)

    @cached_property
    def slots(self) -> frozenset[str]:
        """Its values, but for 1, which may be “one”."""
        return frozenset(one.form for one in self.words if one.slot and one.form != "1")

    @cached_property
    def matcher(self) -> SequenceMatcher:
        return SequenceMatcher(None, "", self.forms, autojunk=False)

    @cached_property
    def places(self) -> dict[str, int]:
        return {form: at for at, form in reversed(list(enumerate(self.forms)))}


def pattern_of(request: str, values: Iterable[str] = ()) -> Pattern:
    """`values`: texts of the expected answer, whose words count as values, like words that the
    request writes like a name.
    """
    of_calls = frozenset(form for value in values for form in words(value) if form not in FILLERS)
    named, found = of_calls | names_in(request), []
    for spelt, form in spelt_words(request):
        slot = form in named or is_slot(form)
        found.append(Word(spelt, form, form in FILLERS and not slot, slot))
    return Pattern(tuple(found), of_calls, request)


@dataclass
class _Found:
    """What an alignment left open."""

    slips: int = 0
    guesses: int = 0  # words further from ours than one slip
    doubtful: list[tuple[Word, Word]] = field(
        default_factory=list
    )  # a slot, and the like word in its place
    missing: list[Word] = field(default_factory=list)
    replaced: bool = False
    breaks: int = 0


def says(
    pattern: Pattern,
    forms: Sequence[str],
    spelt: Sequence[str],
    known: Collection[str],
    values: Collection[str],
) -> bool:
    """Whether the stretch (its words' forms and spellings) says the request.

    `known`: spellings that are words, so no slips. `values`: words of the calls that the text
    teaches; a value of ours that differs from one of theirs at the same place is another task.
    """
    blocks = _one_place(_blocks(pattern, forms))
    if not blocks:
        return False
    found = _Found()
    ends = [(0, max(0, blocks[0][0] - blocks[0][1] - 1)), *((h + n, t + n) for t, h, n in blocks)]
    starts = [(h, t) for t, h, _ in blocks] + [(len(pattern.words), None)]
    for number, ((h1, t1), (h2, t2)) in enumerate(zip(ends, starts, strict=True)):
        inside = 0 < number < len(blocks)
        upto = t2 if t2 is not None else min(len(forms), t1 + h2 - h1 + 1)
        ours, place = pattern.words[h1:h2], slice(t1, upto)
        if number:
            _compare(ours, forms[place], spelt[place], inside, found)
        else:  # from the first block backwards
            _compare(ours[::-1], forms[place][::-1], spelt[place][::-1], inside, found)
        if found.replaced:
            return False
    return _enough(pattern, found, known, values)


def _blocks(pattern: Pattern, forms: Sequence[str]) -> list[tuple[int, int, int]]:
    """(place in the stretch, place in the request, length) of what they have in common, in
    order.
    """
    pattern.matcher.set_seq1(forms)
    return [tuple(block) for block in pattern.matcher.get_matching_blocks()[:-1]]


def _one_place(blocks: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The longest block with those that follow and precede it closely."""
    if not blocks:
        return []
    first = last = max(range(len(blocks)), key=lambda at: blocks[at][2])
    while first and _near(blocks[first - 1], blocks[first]):
        first -= 1
    while last + 1 < len(blocks) and _near(blocks[last], blocks[last + 1]):
        last += 1
    return blocks[first : last + 1]


def _near(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    return b[0] - (a[0] + a[2]) <= GAP + b[1] - (a[1] + a[2])


def _compare(
    ours: Sequence[Word], forms: Sequence[str], spelt: Sequence[str], inside: bool, found: _Found
) -> None:
    """What of our words stands at this place of the text in another spelling, and what does not at
    all.
    """
    if not ours:
        found.breaks += inside and any(form not in FILLERS for form in forms)
        return
    joined = {"".join(one.spelt for one in ours), "".join(one.spelt for one in ours[::-1])}
    if "".join(spelt) in joined or not joined.isdisjoint(spelt):
        found.slips += 1  # a space too many or too few
        return
    start, left, skipped = 0, [], False
    for one in ours:
        at = next((at for at in range(start, len(spelt)) if _like(one, spelt[at], forms[at])), None)
        if at is None:
            left.append(one)
            continue
        skipped |= any(form not in FILLERS for form in forms[start:at])
        start = at + 1
        if one.slot and one.form != forms[at]:
            found.doubtful.append((one, Word(spelt[at], forms[at])))
        elif forms[at] == one.form or one_slip(one.spelt, spelt[at]):
            found.slips += 1
        else:
            found.guesses += 1
    content = [one for one in left if not one.filler]
    rest = [form for form in forms[start:] if form not in FILLERS]
    found.replaced = (
        len(content) >= 3 or any(one.slot for one in content) or bool(left and rest) or skipped
    )
    found.missing += left
    found.breaks += inside and len(rest) > len(content)


def _like(ours: Word, spelt: str, form: str) -> bool:
    if ours.form == form or one_slip(ours.spelt, spelt) or {ours.form, form} == {"1", "one"}:
        return True
    if ours.form in meant_numbers(spelt) or (ours.slot and bones(ours.spelt) == bones(spelt)):
        return True
    if date := _DATE.fullmatch(ours.form):
        return form == date["day"]  # its month is perhaps misspelt
    if ours.slot or len(ours.spelt) < 5 or len(spelt) < 4:
        return False
    return SequenceMatcher(None, ours.spelt, spelt, autojunk=False).ratio() >= LIKE


def _enough(
    pattern: Pattern, found: _Found, known: Collection[str], values: Collection[str]
) -> bool:
    content = sum(not one.filler for one in pattern.words)
    fillers = len(pattern.words) - content
    missing = sum(not one.filler for one in found.missing)
    if found.guesses and not found.slips:
        return False
    if missing > LEFT_OUT * content or found.breaks > len(pattern.words) // 6:
        return False
    allowed = 0 if len(pattern.words) < 6 else max(1, fillers // 4)
    if len(found.missing) - missing > allowed:
        return False
    return all(
        _is_slip(pattern, one, theirs, found, known, values) for one, theirs in found.doubtful
    )


def _is_slip(
    pattern: Pattern,
    ours: Word,
    theirs: Word,
    found: _Found,
    known: Collection[str],
    values: Collection[str],
) -> bool:
    """Whether a word in the place of a value is that value misspelt, and not another value."""
    if ours.form in pattern.values and theirs.form in values:
        return False
    if {ours.form, theirs.form} == {"1", "one"}:
        return True
    if found.slips >= 2 and len(pattern.words) >= 8:
        return True
    if theirs.spelt not in known and _is_only_misspelt(ours, theirs):
        return True
    if is_slot(ours.form) or theirs.spelt in known:
        return False
    return len(ours.spelt) >= 3 and (len(pattern.words) > SHORT or bool(found.slips))


def _is_only_misspelt(ours: Word, theirs: Word) -> bool:
    """Whether a number's or month's name is misspelt and no other one, or a value has other signs
    inside.
    """
    if ours.form in meant_numbers(theirs.spelt) or bones(ours.spelt) == bones(theirs.spelt):
        return True
    named = ours.form in MONTHS or ours.form in DAYS
    return (
        named
        and len(ours.spelt) > 3
        and not is_slot(theirs.form)
        and one_slip(ours.spelt, theirs.spelt)
    )
