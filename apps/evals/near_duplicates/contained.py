"""Held-out requests searched inside texts: which text says one of them somewhere, whatever stands
around it. Pure.

A text is every string of a training row, in order, and once more what each role says, so that a
request that is divided over two messages is one stretch. Words are compared in one spelling
(`text`), misspelt ones through the known words one slip away (`spelling`), and a stretch as
`alignment` says.

Only stretches around a rare part of a request are compared: of each request the KEYS rarest words,
or pairs or triples of neighbouring words where single words are all frequent among the requests
(RARE), are looked up in an inverted index. What all requests of a template share costs nothing so.

A text is searched as it is, and without its markup and the decorations of its lines (`markup`),
where that is another text.

A short request of common words (“cancel my order”) is part of much innocent text. One with fewer
than LEAST_WORDS words or LEAST_CONTENT that carry a wish, and without an identifier, is found only
where it is a whole passage: a message, an example, a string of a JSON text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby

from apps.evals.near_duplicates import rearranged
from apps.evals.near_duplicates.alignment import REACH, Pattern, says
from apps.evals.near_duplicates.glyphs import fold
from apps.evals.near_duplicates.letters import Spelt, parts_of
from apps.evals.near_duplicates.markup import unwrapped, views
from apps.evals.near_duplicates.spelling import (
    NUMBER_NAMES,
    Neighbours,
    all_letters,
    letters_for_digits,
    meant_numbers,
    other_forms,
)
from apps.evals.near_duplicates.text import (
    DAYS,
    FILLERS,
    MONTHS,
    is_slot,
    spelt_words,
)

KEYS = 3
RARE = 64
LEAST_WORDS, LEAST_CONTENT = 5, 3
ANCHORS = 100  # stretches of one text that are compared with one request
# share of a request's words that may be misspelt beyond recognition, before it is compared
MISSING = 0.25
LONG = 400  # words of a request from which on only a few stretches are
REMEMBERED = 1_000_000  # spellings
PLAIN_WORDS = FILLERS | MONTHS.keys() | DAYS | NUMBER_NAMES | {"pm"}

Passage = tuple[str, str]  # role, text


@dataclass(frozen=True)
class Searched:
    """A text in which requests are searched: its passages, the words of the calls that it teaches,
    and the names in its JSON.
    """

    passages: Sequence[Passage]
    values: frozenset[str] = frozenset()
    names: Sequence[Passage] = ()  # of properties and arguments, by the object in which they stand


@dataclass(frozen=True)
class _Stream:
    """The words of a text, in canonical form and as spelt."""

    forms: list[str]
    spelt: list[str]
    ends: list[int]  # positions where passages end

    @classmethod
    def of(cls, passages: Sequence[Sequence[tuple[str, str]]]) -> _Stream:
        found = list(chain.from_iterable(passages))
        return cls(
            [form for _, form in found],
            [spelt for spelt, _ in found],
            list(accumulate(map(len, passages))),
        )


def is_specific(pattern: Pattern) -> bool:
    """Whether a text that contains this somewhere is about it."""
    identifier = any(sum(char.isdigit() for char in form) >= 3 for form in pattern.content)
    if identifier and len(pattern.words) >= 3:
        return True
    return len(pattern.words) >= LEAST_WORDS and len(pattern.content) >= LEAST_CONTENT


class _Vocabulary:
    """The words of requests, and which of them a spelling may stand for."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.forms = {one.form for pattern in patterns for one in pattern.words}
        self.spellings = {one.spelt for pattern in patterns for one in pattern.words}
        self._identifiers = {
            read: spelt
            for spelt in sorted(self.spellings)
            if spelt.isalnum() and not spelt.isalpha() and not spelt.isdigit()
            for read in all_letters(spelt)
        }
        spelt_as: dict[str, set[str]] = defaultdict(set)
        for pattern in patterns:
            for one in pattern.words:
                if not one.filler and one.spelt.isalpha():
                    spelt_as[one.spelt].add(one.form)
        self._spelt_as, self._neighbours = spelt_as, Neighbours(spelt_as)
        self._misspelt: dict[str, tuple[str, ...]] = {}

    def word_of(self, read: str) -> str:
        """The word that letters stand for, which may be an identifier with digits of its own; ""
        if none.
        """
        if read in self.spellings or read in PLAIN_WORDS:
            return read
        if identifier := self._identifiers.get(read):
            return identifier
        return read if len(read) > 4 and self._neighbours.of(read) else ""

    def forms_of(self, form: str, spelt: str) -> tuple[str, ...]:
        """What a word of a text may be: itself, or known words that it misspells."""
        return (form,) if form in self.forms else self.meant(spelt)

    def meant(self, spelt: str) -> tuple[str, ...]:
        """The known words that an unknown spelling may stand for."""
        found = self._misspelt.get(spelt)
        if found is None:
            if len(self._misspelt) >= REMEMBERED:
                self._misspelt.clear()
            near = self._neighbours.of(spelt) if spelt.isalpha() else []
            forms = [form for one in near for form in self._spelt_as[one]]
            forms += [
                form for form in (*meant_numbers(spelt), *other_forms(spelt)) if form in self.forms
            ]
            found = self._misspelt[spelt] = tuple(dict.fromkeys(forms))
        return found


class Requests:
    """An index of requests. `within` returns positions of the patterns given."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = patterns
        self._whole: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._keys: dict[int, dict[Hashable, list[int]]] = {1: {}, 2: {}, 3: {}}
        self._needed: dict[int, int] = {}
        self._anchors: dict[int, frozenset[str]] = {}
        searched = [
            at
            for at, pattern in enumerate(patterns)
            if self._add_whole(at, pattern) and is_specific(pattern)
        ]
        self._add_keys(searched)
        self._vocabulary = _Vocabulary(patterns)
        inside = set(searched)
        self._letters = Spelt(
            (at, pattern.text, at in inside) for at, pattern in enumerate(patterns)
        )

    def _add_whole(self, at: int, pattern: Pattern) -> bool:
        content = tuple(one.form for one in pattern.words if not one.filler) or tuple(pattern.forms)
        if content:
            self._whole[content].append(at)
        return bool(content)

    def _add_keys(self, searched: list[int]) -> None:
        contents = [_content(self.patterns[at].forms) for at in searched]
        frequent = {
            n: Counter(gram for content in contents for gram in set(_grams(content, n)))
            for n in self._keys
        }
        for at, content in zip(searched, contents, strict=True):
            n, keys = _chosen(content, frequent)
            self._needed[at] = len(keys) - 1 if n == 1 and len(keys) > 2 else 1
            self._anchors[at] = frozenset(
                form for key in keys for form in (key if n > 1 else (key,))
            )
            for key in keys:
                self._keys[n].setdefault(key, []).append(at)

    def within(self, text: Searched) -> list[int]:
        """The requests that the text contains."""
        found: set[int] = set()
        for passages in self._all_views(text.passages):
            said = [(role, spelt_words(one)) for role, one in passages]
            for _, one in said:
                found.update(self._whole.get(tuple(_content(form for _, form in one)), ()))
            self._add_found(said, text.values, found)
            self._add_spelt(passages, found)
        if text.names:
            self._add_found(
                [(role, spelt_words(one)) for role, one in text.names], text.values, found
            )
            self._add_spelt(text.names, found)
        return sorted(found)

    def _all_views(self, passages: Sequence[Passage]) -> Iterator[Sequence[Passage]]:
        """The views of the passages, and those with words of the requests that digits were put into
        (t1ck3t).
        """
        yield from _views(passages)
        for numbers in (False, True):
            read = [
                (role, letters_for_digits(fold(one), self._vocabulary.word_of, numbers))
                for role, one in passages
            ]
            if not any(one for _, one in read):
                return
            yield [
                (role, one or said) for (role, one), (_, said) in zip(read, passages, strict=True)
            ]

    def _add_spelt(self, passages: Sequence[Passage], found: set[int]) -> None:
        """Adds those whose letters occur in the passages, or in the contents of JSON inside
        them.
        """
        held_in_json = [(role, unwrapped(one)) for role, one in passages]
        for view in (passages, held_in_json) if held_in_json != list(passages) else (passages,):
            spelt = [(role, parts_of(one)) for role, one in view]
            found.update(at for _, parts in spelt for at in self._letters.whole(parts))
            for parts in _streams(spelt):
                found |= self._letters.within(list(chain.from_iterable(parts)))

    def _add_found(
        self, said: Sequence[tuple[str, Sequence]], values: frozenset[str], found: set[int]
    ) -> None:
        for stretch in _streams(said):
            stream = _Stream.of(stretch)
            here = set(stream.forms)
            for at, mostly in self._candidates(stream):
                if at not in found and (
                    (mostly and self._found(at, stream, values))
                    or self._rearranged(self.patterns[at], stream, here)
                ):
                    found.add(at)

    @staticmethod
    def _rearranged(pattern: Pattern, stream: _Stream, here: set[str]) -> bool:
        absent = len(pattern.content - here)
        return (
            absent <= rearranged.LEFT_OUT * len(pattern.content)
            and rearranged.says(pattern, stream.forms, stream.ends)
        ) or (here.issuperset(pattern.alone) and rearranged.is_shuffled(pattern, stream.forms))

    def _candidates(self, stream: _Stream) -> Iterator[tuple[int, bool]]:
        """Requests of which enough keys occur in the text, and whether nearly all their words do,
        possibly misspelt.
        """
        forms, here = stream.forms, set(stream.forms)
        meant = {
            spelt: self._vocabulary.meant(spelt)
            for form, spelt in zip(forms, stream.spelt, strict=True)
            if form not in self._vocabulary.forms
        }
        here.update(form for found in meant.values() for form in found)
        hits: Counter[int] = Counter()
        for key in here & self._keys[1].keys():
            hits.update(self._keys[1][key])
        if self._keys[2] or self._keys[3]:
            read = [
                next(iter(meant.get(spelt, ())), form)
                for form, spelt in zip(forms, stream.spelt, strict=True)
            ]
            content = _content(read)
            for n in (2, 3):
                for key in set(_grams(content, n)) & self._keys[n].keys():
                    hits.update(self._keys[n][key])
        slips = sum(map(bool, meant.values()))
        for at, count in hits.items():
            if count >= self._needed[at]:
                yield at, self._mostly(self.patterns[at], here, slips)

    def _mostly(self, pattern: Pattern, here: set[str], slips: int) -> bool:
        """Whether a text with these words may contain the request. One of its values may be
        misspelt, if there are other typos.
        """
        missing = pattern.content - here
        if not missing:
            return True
        if len(missing) > max(1, MISSING * len(pattern.content)):
            return False
        values = missing & pattern.slots
        return not values or (len(values) == 1 and slips > any(map(is_slot, values)))

    def _found(self, at: int, stream: _Stream, values: frozenset[str]) -> bool:
        pattern = self.patterns[at]
        length = len(pattern.words)
        most = ANCHORS if length < LONG else 2
        done: list[tuple[int, int]] = []
        for place, one in self._places(at, stream):
            offset = pattern.places[one]
            start = max(0, place - int(offset * REACH) - 8)
            end = place + int((length - offset) * REACH) + 8
            if any(abs(start - first) <= 2 and abs(end - last) <= 2 for first, last in done):
                continue
            done.append((start, end))
            if says(
                pattern,
                stream.forms[start:end],
                stream.spelt[start:end],
                self._vocabulary.spellings,
                values,
            ):
                return True
            if len(done) >= most:
                break
        return False

    def _places(self, at: int, stream: _Stream) -> Iterator[tuple[int, str]]:
        """(place in the text, word) of the request's keys, those that the text has least often
        first; only where one of the words beside it in the request stands beside it there."""
        pattern, anchors = self.patterns[at], self._anchors[at]
        places: dict[str, list[int]] = defaultdict(list)
        for place, (form, spelt) in enumerate(zip(stream.forms, stream.spelt, strict=True)):
            for one in anchors.intersection(self._vocabulary.forms_of(form, spelt)):
                places[one].append(place)
        for one, found in sorted(places.items(), key=lambda item: (len(item[1]), item[0])):
            offset = pattern.places[one]
            beside = {
                *pattern.forms[max(0, offset - 2) : offset],
                *pattern.forms[offset + 1 : offset + 3],
            }
            for place in found:
                if not beside.isdisjoint(stream.forms[max(0, place - 3) : place + 4]):
                    yield place, one


def _chosen(content: list[str], frequent: dict[int, Counter]) -> tuple[int, list]:
    """The kind of the keys of a request (single words, pairs, triples), and its rarest ones."""
    for n in (1, 2, 3):
        grams = sorted(
            set(_grams(content, n)), key=lambda gram: (frequent[n][gram], -len(str(gram)), gram)
        )
        rare = [gram for gram in grams if frequent[n][gram] <= RARE][:KEYS]
        if rare or n == 3 or len(content) <= n:
            return n, rare or grams[:KEYS]
    raise AssertionError("a request has words")


def _views(passages: Sequence[Passage]) -> Iterator[Sequence[Passage]]:
    """The passages unchanged, without markup, and without decorations; only those that differ."""
    seen: list[tuple[str, ...]] = []
    for view in zip(*(views(found) for _, found in passages), strict=True):
        if view not in seen:
            seen.append(view)
            yield [(role, found) for (role, _), found in zip(passages, view, strict=True)]


def _content(forms: Iterable[str]) -> list[str]:
    found = list(forms)
    return [form for form in found if form not in FILLERS] or found


def _grams(forms: Sequence[str], n: int) -> Iterable[Hashable]:
    return forms if n == 1 else zip(*(forms[at:] for at in range(n)), strict=False)


def _streams(passages: Sequence[tuple[str, Sequence]]) -> Iterator[list[Sequence]]:
    """The words of all passages in order; and those of each role, if others speak in between."""
    yield [found for _, found in passages]
    turns = Counter(role for role, _ in groupby(role for role, _ in passages))
    for role, count in turns.items():
        if role and count > 1:
            yield [found for other, found in passages if other == role]
