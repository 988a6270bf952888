"""Characters that look like others or like nothing, by Unicode's tables. Pure.

What looks like a plain Latin letter or digit is in `confusables.txt`. What is invisible is what Unicode calls a default
ignorable code point (DerivedCoreProperties), among them letters such as U+3164.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Small letters whose capital looks like a Latin one, or that are read as one.
_SMALL = dict(
    zip(
        "авекмнорстухіјѕԁԛԝһӏαβεικνορτυχγηωϲϳłøđħıɡɑ",
        "abekmhopctyxijsdqwhlabeikvoptuxynwcjlodhiga",
        strict=True,
    )
)
_WORD = re.compile(r"[^\W\d_]+")


def _table() -> dict[str, str]:
    lines = (Path(__file__).parent / "confusables.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    return {char: letter for letter, chars in pairs for char in chars}


_CONFUSABLE = _table() | _SMALL
_LETTERS = str.maketrans({char: letter for char, letter in _CONFUSABLE.items() if unicodedata.category(char)[0] == "L"})
_SIGNS = str.maketrans({char: letter for char, letter in _CONFUSABLE.items() if unicodedata.category(char)[0] != "L"})
_FOLDED = str.maketrans(_SMALL)


def visible(text: str) -> str:
    """The text without what is invisible."""
    return _IGNORABLE.sub("", text)


def latin(text: str) -> str:
    """The text with look-alikes as the plain Latin letters that a reader sees, before its case is folded: Η is H and η is n.

    A word of another alphabet stays, if the text has words of that alphabet that no Latin letters look like: Greek is Greek.
    """
    text = text.translate(_SIGNS)
    words = {word: word.translate(_LETTERS) for word in set(_WORD.findall(text)) if not word.isascii()}
    foreign = {
        _alphabet(word)
        for word, seen in words.items()
        if not seen.isascii() and not any(char.isascii() for char in word)
    }
    replaced = {
        word: seen
        for word, seen in words.items()
        if any(char.isascii() for char in word) or (seen.isascii() and _alphabet(word) not in foreign)
    }
    return _WORD.sub(lambda match: replaced.get(match[0], match[0]), text) if replaced else text


def latin_when_folded(text: str) -> str:
    """A case-folded text of any alphabet, with its small letters as Latin ones: both spellings of a word stay equal."""
    return text.translate(_FOLDED)


def _alphabet(word: str) -> str:
    return unicodedata.name(word[0], "").partition(" ")[0]
