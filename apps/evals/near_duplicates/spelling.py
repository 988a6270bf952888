"""Normalises spellings: numbers in words, digits in words, typos. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from rapidfuzz.distance import OSA

# Numbers in words

_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen \
fifteen sixteen
    seventeen eighteen nineteen"""
_UNITS = {name: value for value, name in enumerate(re.findall(r"\w+", _ONES))}
_TENS = {
    name: value
    for value, name in zip(
        range(20, 100, 10),
        re.findall(r"\w+", "twenty thirty forty fifty sixty seventy eighty ninety"),
        strict=True,
    )
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
NUMBER_NAMES = frozenset(_UNITS | _TENS | _SCALES)
_NAME = "|".join(sorted(NUMBER_NAMES, key=len, reverse=True))
_RUN = re.compile(rf"\b(?:{_NAME})(?:(?:\s*-\s*|\s+(?:and\s+)?)(?:{_NAME}))*\b")


def digits_for_words(text: str) -> str:
    """The numbers of a folded text in digits: “twenty-five” is 25, “four seven one one” 4711. A
    single “one” stays a word.
    """
    return _RUN.sub(lambda match: " ".join(_numbers(re.findall(r"[a-z]+", match[0]))), text)


def _numbers(names: list[str]) -> list[str]:
    if names == ["one"]:
        return names
    found = list(_parsed(names))
    if len(found) >= 3 and all(number < 10 for number in found):
        return ["".join(map(str, found))]  # an identifier read out
    if len(found) == 2 and found[0] in (19, 20) and 10 <= found[1] < 100:
        return [f"{found[0]}{found[1]}"]  # a year
    return [str(number) for number in found]


def _parsed(names: list[str]) -> Iterator[int]:
    """The numbers that the names make, each as long as it goes on: a tens takes a unit, a scale
    takes what is smaller.
    """
    done, current, room = 0, None, 0  # room: what is added must be smaller than this
    for name in names:
        if name == "and":
            continue
        if scale := _SCALES.get(name):
            current = (1 if current is None else current) * scale
            if scale > 100:
                done, current = done + current, 0
            room = scale
            continue
        value = _UNITS.get(name, _TENS.get(name, 0))
        if current is not None and not 0 < value < room:
            yield done + current
            done, current = 0, None
        current = (current or 0) + value
        room = 10 if name in _TENS else 0
    if current is not None:
        yield done + current


# Digits in words

_SIGNS = re.escape("@$!|+€#§£")
_DIGITAL = re.compile(rf"(?<![\w{_SIGNS}])[^\W\d]*+[\d{_SIGNS}][\w{_SIGNS}]*+")
_READ_AS = [
    str.maketrans("0123456789@$!|+€#§£", letters)
    for letters in ("oizeasgtbgasiltehsl", "olzeasgtbgasiltehsl")
]


def all_letters(word: str) -> set[str]:
    """A word in letters only, as its digits and signs look: mreyes91 as mreyesgi and mreyesgl."""
    return {read for table in _READ_AS if (read := word.translate(table)).isalpha()}


def letters_for_digits(text: str, word_of: Callable[[str], str], numbers: bool) -> str:
    """A folded text with the words that digits and signs were put into (t1ck3t, p@y) as they should
    be; "" if there is none. `word_of`: the word that letters stand for, "" if none. `numbers`:
    whether whole numbers are read so, too (47 as at).
    """
    changed = 0

    def word(match: re.Match[str]) -> str:
        nonlocal changed
        if match[0].isdigit() and not numbers:
            return match[0]
        for table in _READ_AS:
            read = match[0].rstrip("!").translate(table)
            meant = word_of(read) if len(read) > 1 and read.isalpha() and read != match[0] else ""
            if meant and meant != match[0]:
                changed += not match[0].isdigit()
                return meant
        return match[0]

    made = _DIGITAL.sub(word, text)
    return made if changed else ""


# Slips of the keyboard


def one_slip(a: str, b: str) -> bool:
    """Whether adding, removing or replacing a letter, or swapping two, turns one word into the
    other.

    A different first letter in a short word (buy, guy) makes a different word.
    """
    if a[:1] != b[:1] and len(a) == len(b) < 6 and a[1:] == b[1:]:
        return False
    return OSA.distance(a, b, score_cutoff=1) <= 1


class Neighbours:
    """The known words one slip away from a word: those that share what is left when a letter is
    taken out (SymSpell).
    """

    def __init__(self, known: Iterable[str], shortest: int = 4) -> None:
        self._by_rest: dict[str, list[str]] = defaultdict(list)
        self._shortest = shortest
        for word in known:
            if len(word) >= shortest:
                for rest in self._rests(word):
                    self._by_rest[rest].append(word)

    @staticmethod
    def _rests(word: str) -> set[str]:
        return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}

    def of(self, word: str) -> list[str]:
        if not self._shortest - 1 <= len(word) <= 40:
            return []
        near = {other for rest in self._rests(word) for other in self._by_rest.get(rest, ())}
        return sorted(other for other in near if one_slip(word, other))


# Misspelt values

_NUMBER_SLIPS = Neighbours(name for name in _UNITS | _TENS if len(name) >= 4)
_NO_NUMBERS = frozenset(
    [
        "tree",
        "there",
        "file",
        "fire",
        "fine",
        "even",
        "right",
        "weight",
        "height",
        "eights",
        "ones",
        "tens",
    ]
)


@lru_cache(maxsize=50_000)
def meant_numbers(word: str) -> frozenset[str]:
    """The numbers, in digits, whose names are one slip away from a word that is no other word."""
    if word in _NO_NUMBERS or word in _UNITS or word in _TENS or not word.isalpha():
        return frozenset()
    return frozenset(str((_UNITS | _TENS)[name]) for name in _NUMBER_SLIPS.of(word))


_PARTS = re.compile(r"\d+|[^\W\d_]+")
_CLOCK = re.compile(
    r"t?(?P<h>[01]?\d|2[0-3])[.:h](?P<m>[0-5]\d?)"
)  # 14.3: numbers lose their last 0


def bones(value: str) -> str:
    """A value without the punctuation inside it, which may differ: INV-20931, inv20931; 7:15, 7.15,
    7h15.
    """
    if clock := _CLOCK.fullmatch(value):
        return f"t{int(clock['h']):02d}:{clock['m']:0<2}"
    return value


def other_forms(form: str) -> list[str]:
    """What words a value may be, written with other signs: its parts in letters and in digits, a
    time.
    """
    found = (
        _PARTS.findall(form) if not form.isalpha() and not form.isdigit() and form.isalnum() else []
    )
    return [*found, bones(form)] if bones(form) != form else found
