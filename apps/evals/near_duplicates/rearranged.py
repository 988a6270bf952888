"""Whether a stretch of text has nearly all words of a request in little more room, in whatever
order, and nothing in place of the rest. Pure.

Words that are left out of one passage are forgiven where no other words stand there instead and
none is a word of the expected answer: another value, or another thing that is wanted, makes another
task. So are words in another order where the values (numbers, names, words of the expected calls)
keep theirs, or each the words before it: from Oslo to Rome is not from Rome to Oslo.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from apps.evals.near_duplicates.alignment import Pattern
from apps.evals.near_duplicates.text import FILLERS, MONTHS, TURNING, is_slot

LEAST = 8  # words that carry meaning, from which on some may be missing
LEFT_OUT = 0.25  # of them
INSTEAD = 1 / 3  # words between them that the request does not have, for each that is missing
ROOM = 1.25  # length of the stretch, of that of the request
_DATE, _TIME = re.compile(r"d(?P<m>\d\d)-(?P<d>\d\d)"), re.compile(r"t(?P<h>\d\d):\d\d")
SHORTEST, SHUFFLED = (
    6,
    0.5,
)  # words of a request that is shuffled; share of neighbours that stay neighbours by chance
STRANGE = 0.3  # share of words that the request does not have, if none is missing


def says(pattern: Pattern, forms: Sequence[str], ends: Sequence[int] = ()) -> bool:
    """`forms`: the words of a text. `ends`: where its passages end; what the next one says stands
    in place of nothing.
    """
    wanted = Counter(one.form for one in pattern.words if not one.filler)
    total = sum(wanted.values())
    if total < 3:
        return False
    first, last, found = _densest(wanted, forms, int(ROOM * len(pattern.words)) + 2)
    missing = wanted - found
    absent = sum(missing.values())
    if absent > (LEFT_OUT * total if total >= LEAST else 0) or not TURNING.isdisjoint(missing):
        return False
    before, after = _cut_off(pattern, missing)
    start = max((end for end in ends if end <= first), default=0)
    stop = min((end for end in ends if end > first), default=len(forms))
    if absent and (last >= stop or not pattern.values.isdisjoint(missing)):
        return False
    stop = max(stop, last + 1)
    outside = [*_first(forms[start:first][::-1], before), *_first(forms[last + 1 : stop], after)]
    around = [*outside, *forms[first : last + 1]]
    pieces = {piece for form in missing for piece in _pieces(form)}
    strange = list(
        (Counter(form for form in around if form not in FILLERS | pieces) - wanted).elements()
    )
    if not TURNING.isdisjoint(strange):
        return False
    if absent and (len(strange) > INSTEAD * absent or any(map(is_slot, strange))):
        return False
    return len(strange) <= STRANGE * total and _values_stay(pattern, forms[first : last + 1])


def is_shuffled(pattern: Pattern, forms: Sequence[str]) -> bool:
    """Whether a stretch has all words of the request and no others, but hardly one still stands
    beside a word that it stands beside in the request: then the order says nothing, not even which
    value belongs where."""
    wanted, alone = Counter(pattern.alone), pattern.alone
    if len(alone) < SHORTEST:
        return False
    first, last, found = _densest(wanted, forms, len(alone))
    if (wanted - found).total() > len(alone) // 10 or not wanted.keys() - FILLERS <= found.keys():
        return False
    beside = {frozenset(pair) for pair in pairwise(alone)}
    pairs = [frozenset(pair) for pair in pairwise(forms[first : last + 1])]
    return sum(pair in beside for pair in pairs) <= SHUFFLED * len(pairs)


def _densest(
    wanted: Counter[str], forms: Sequence[str], room: int
) -> tuple[int, int, Counter[str]]:
    """(first place, last place, words) of the stretch of at most `room` words that has most of the
    wanted ones; from the first to the last of them."""
    places = [at for at, form in enumerate(forms) if form in wanted]
    found: Counter[str] = Counter()
    first, last, most, count, start = 0, -1, 0, 0, 0
    for at in places:
        form = forms[at]
        found[form] += 1
        count += found[form] <= wanted[form]
        while at - places[start] >= room:
            gone = forms[places[start]]
            count -= found[gone] <= wanted[gone]
            found[gone] -= 1
            start += 1
        if count > most:
            most, first, last = count, places[start], at
    return _trimmed(forms, wanted, first, last)


def _trimmed(
    forms: Sequence[str], wanted: Counter[str], first: int, last: int
) -> tuple[int, int, Counter[str]]:
    """The stretch without words at its ends that two others or more part from the rest: they belong
    to what stands around.
    """
    places = [at for at in range(first, last + 1) if forms[at] in wanted]
    while len(places) > 2 and _strange(forms[places[0] + 1 : places[1]]) >= 2:
        places.pop(0)
    while len(places) > 2 and _strange(forms[places[-2] + 1 : places[-1]]) >= 2:
        places.pop()
    return (
        (places[0], places[-1], Counter(forms[at] for at in places))
        if places
        else (0, -1, Counter())
    )


def _strange(forms: Sequence[str]) -> int:
    return sum(form not in FILLERS for form in forms)


def _cut_off(pattern: Pattern, missing: Counter[str]) -> tuple[int, int]:
    """How many meaningful words are missing at the start and at the end: others may be there
    instead.
    """
    content = [one.form for one in pattern.words if not one.filler]
    here = [at for at, form in enumerate(content) if form not in missing]
    return (here[0], len(content) - 1 - here[-1]) if here else (0, 0)


def _first(forms: Sequence[str], count: int) -> list[str]:
    """The first words that are not fillers."""
    return list(islice((form for form in forms if form not in FILLERS), count))


def _pieces(form: str) -> Iterator[str]:
    """What is left of a date or a time of which a word is missing."""
    if date := _DATE.fullmatch(form):
        yield from (
            *(name for name, number in MONTHS.items() if number == int(date["m"])),
            date["d"].lstrip("0"),
        )
    elif time := _TIME.fullmatch(form):
        yield from (str(int(time["h"])), str((int(time["h"]) - 1) % 12 + 1), "am", "pm")


def _values_stay(pattern: Pattern, forms: Sequence[str]) -> bool:
    """Whether the values come in the request's order, but for those that stand side by side, or
    each behind the same words.
    """
    slots = pattern.slots
    runs: dict[str, list[int]] = defaultdict(list)
    for at, (before, form) in enumerate(pairwise(("", *pattern.forms))):
        if form in slots:
            begun = before in slots and at - 1 in runs[before]
            runs[form].append(at - 1 if begun else at)
    latest = 0
    for form in forms:
        if form in slots:
            next_ = min((at for at in runs[form] if at >= latest), default=None)
            if next_ is None:
                return _beside(forms, slots) <= _beside(
                    [*pattern.forms[-2:], *pattern.forms], slots
                )
            latest = next_
    return True


def _beside(forms: Sequence[str], slots: frozenset[str]) -> set[tuple[str, ...]]:
    """(value, the two words before it, where those are none): “from the” Oslo depot is not “to the”
    Oslo depot.
    """
    behind = zip(forms[2:], forms[1:], forms, strict=False)
    return {some for some in behind if some[0] in slots and slots.isdisjoint(some[1:])}
