"""Held-out requests searched as their letters: whatever stands between the words, or inside them,
does not matter. Pure.

A request is the letters of its text in one spelling (`glyphs.fold`), in a row without anything
between them, and its numbers, each at the place among the letters where it stands. A text says the
request where it has the same letters in a row and the same numbers at the same places. So
snake_case, camelCase, s p a c e d letters, a JSON list of words or letters and any other joint or
ornament are one text.

Between the words there may also be what counts them (1, 2, 3 …: footnotes, line numbers, indices),
and a word that comes again and again (“um”, the name of a JSON field): both are read over
(`readings`).

A request begins where a word begins, so only there its first GRAM letters are looked up, then the
rarest run of GRAM letters in it; the numbers are compared by one look-up. So a template of which
only the numbers, or only a few words, differ costs nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from apps.evals.near_duplicates.glyphs import fold
from workers.lib.remembered import remembered

GRAM = 10  # letters that are looked up
COUNTED = 4  # numbers increasing by one, from this many on, count something
AGAIN = 5  # a word that occurs this often within APART words does not belong to the text
APART = 8
_PART = re.compile(r"(?P<number>\d+)|[^\W\d_]+")
Numbers = tuple[tuple[int, str], ...]  # (letters before it, digits)


@dataclass(frozen=True)
class Letters:
    """A text as its letters and its numbers, in order; numbers not separated by letters are one."""

    letters: str
    numbers: Numbers
    ends: frozenset[int] = field(default=frozenset(), compare=False)  # of its words, in letters

    @classmethod
    def of(cls, parts: Iterable[str]) -> Letters:
        """From the words and numbers of a text."""
        found: list[str] = []
        numbers: list[tuple[int, str]] = []
        length, ends = 0, [0]
        for part in parts:
            if not part[0].isdecimal():
                found.append(part)
                length += len(part)
                ends.append(length)
            elif numbers and numbers[-1][0] == length:
                numbers[-1] = length, numbers[-1][1] + part
            else:
                numbers.append((length, part))
        return cls("".join(found), tuple(numbers), frozenset(ends))


@remembered(characters=1_000_000)
def parts_of(text: str) -> tuple[str, ...]:
    """The words and numbers of a text, folded. A number's leading zeros do not count."""
    found = _PART.finditer(fold(text))
    return tuple(
        match["number"].lstrip("0") or "0" if match["number"] else match[0] for match in found
    )


@lru_cache(maxsize=64)
def readings(parts: tuple[str, ...]) -> tuple[Letters, ...]:
    """The text unchanged; without what numbers its words; and without words that are repeated again
    and again.
    """
    rest = _without_refrains(parts)
    some = (parts, rest) if len(rest) < len(parts) else (parts,)
    return tuple(Letters.of(one) for given in some for one in (given, *_uncounted(given)))


def _uncounted(parts: Sequence[str]) -> Iterator[list[str]]:
    """Without the longest series of numbers that go up by one; of equal numbers the first is one of
    the series, or the last.
    """
    small = [
        (at, int(part)) for at, part in enumerate(parts) if part[0].isdecimal() and len(part) <= 4
    ]
    done: list[int] = []
    for first in (True, False) if len(small) >= COUNTED else ():
        series: dict[int, list[int]] = {}  # the places of those that end in a number
        for at, number in small:
            places = [*series.get(number - 1, ()), at]
            if len(places) - first >= len(series.get(number, ())):
                series[number] = places
        best = max(series.values(), key=len, default=[])
        if len(best) >= COUNTED and best != done:
            done = best
            drop = set(best)
            yield [part for at, part in enumerate(parts) if at not in drop]


def _without_refrains(parts: Sequence[str]) -> list[str]:
    """Without the words that come AGAIN times or more at most APART words after one another, where
    they do.
    """
    drop: set[int] = set()
    for word, count in Counter(parts).items() if len(parts) >= 2 * AGAIN else ():
        if count < AGAIN or word[0].isdecimal():
            continue
        run: list[int] = []
        for at in [*(at for at, part in enumerate(parts) if part == word), len(parts) + APART + 1]:
            if run and at - run[-1] > APART:
                drop.update(run if len(run) >= AGAIN else ())
                run = []
            run.append(at)
    return [part for at, part in enumerate(parts) if at not in drop]


class Spelt:
    """An index of requests by their letters."""

    def __init__(self, requests: Iterable[tuple[int, str, bool]]) -> None:
        """`requests`: (number, text, whether it is searched inside longer texts, as those with GRAM
        letters are).
        """
        self._numbers_of: dict[str, dict[Numbers, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._whole: dict[Letters, list[int]] = defaultdict(list)
        self._longest = 0  # letters of a request that is only searched as a whole text
        for number, text, inside in requests:
            found = Letters.of(parts_of(text))
            if inside and len(found.letters) >= GRAM:
                self._numbers_of[found.letters][found.numbers].append(number)
            elif found.letters:
                self._whole[found].append(number)
                self._longest = max(self._longest, len(found.letters))
        counts = Counter(
            letters[at : at + GRAM] for letters in self._numbers_of for at in _offsets(letters)
        )
        self._by_first: dict[
            str, dict[int, dict[str, list[str]]]
        ] = {}  # first letters → place of the rarest → which
        for letters in self._numbers_of:
            at = min(_offsets(letters), key=lambda at: (counts[letters[at : at + GRAM]], at))
            by_rarest = self._by_first.setdefault(letters[:GRAM], {}).setdefault(at, {})
            by_rarest.setdefault(letters[at : at + GRAM], []).append(letters)

    def within(self, parts: Sequence[str]) -> set[int]:
        """The numbers of the requests contained in a text with these words and numbers."""
        if not self._by_first:
            return set()
        return {number for one in readings(tuple(parts)) for number in self._within(one)}

    def whole(self, parts: Sequence[str]) -> set[int]:
        """The numbers of the requests equal to such a text; requests that are searched inside texts
        are found by `within`.
        """
        if len(parts) > self._longest * (AGAIN - 1):
            return set()
        return {number for one in readings(tuple(parts)) for number in self._whole.get(one, ())}

    def _within(self, text: Letters) -> Iterator[int]:
        given, by_first = text.letters, self._by_first
        for start in text.ends:
            for offset, by_rarest in by_first.get(given[start : start + GRAM], {}).items():
                for letters in by_rarest.get(given[start + offset : start + offset + GRAM], ()):
                    if start + len(letters) in text.ends and given.startswith(letters, start):
                        yield from self._with_numbers(letters, start, text.numbers)

    def _with_numbers(self, letters: str, start: int, numbers: Numbers) -> Iterator[int]:
        """Numbers at either end of the stretch may belong to the surrounding text."""
        known, end = self._numbers_of[letters], start + len(letters)
        inside = tuple((at - start, digits) for at, digits in numbers if start < at < end)
        first = tuple((0, digits) for at, digits in numbers if at == start)
        last = tuple((len(letters), digits) for at, digits in numbers if at == end)
        for before in {(), first}:
            for after in {(), last}:
                yield from known.get(before + inside + after, ())


def _offsets(letters: str) -> range:
    return range(0, len(letters) - GRAM + 1, GRAM)
