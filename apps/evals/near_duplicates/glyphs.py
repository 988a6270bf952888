"""One spelling of a text's letters: without escapes, without accents, without what is invisible,
characters that look like Latin ones as these, by Unicode's tables. Pure.

What looks like a plain Latin letter or digit is in `confusables.txt`. What is invisible is what
Unicode calls a default ignorable code point (DerivedCoreProperties), among them letters such as
U+3164; and the tatweel, which only stretches a word.
"""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote_plus

_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|([nrtbf])|\r?\n)|\\+(?=[\"'/\\])")
_BYTES = re.compile(r"(?:\\+x[0-9a-fA-F]{2})+")
ESCAPED_AT_MOST = 4  # levels of nested escapes
_QUOTED_PRINTABLE = re.compile(r"(?:=[89A-F][0-9A-F])+|=3D|=20(?=[ \t]*$)|=[ \t]*\r?\n", re.M)
_URL_ENCODED = re.compile(r"(?>(?:[\w.~!*'()+-]|%[0-9a-fA-F]{2})+)")
_BROKEN = re.compile(r"(?<=[^\W\d_])(?:\u00ad|-[ \t]*\r?\n[ \t]*)(?=[^\W\d_])")
_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ＇`", "'"))
# Quotes, brackets, emphasis, joints and pictures: not what may stand inside a date, a time, a
# number or a word.
_ORNAMENT = re.compile(r"(?:[^\w\s.,:;/'@%$€£+&#-]|_|(?<!\w)'|'(?!\w))+")
_STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d)t(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(?:z\b|[+-]\d\d:?\d\d\b)?")
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u0640\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
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


_SEEN = _table() | _SMALL
_SIGNS = str.maketrans({char: seen for char, seen in _SEEN.items() if not char.isalpha()})
_DIGITS = {char: seen for char, seen in _SEEN.items() if char.isalpha() and seen.isdigit()}
_LETTERS = {char: seen for char, seen in _SEEN.items() if char.isalpha() and seen.isalpha()}
# Of a small letter, what it looks like itself, or else what its capital looks like.
_FOLDED = {char.casefold(): seen for char, seen in _LETTERS.items()} | {
    char: seen for char, seen in _LETTERS.items() if char.casefold() == char
}
# Capitals that look like another letter than their small ones do: Η and η, Ν and ν.
_TWO_FACED = {char: seen for char, seen in _LETTERS.items() if _FOLDED[char.casefold()] != seen}
_READ, _READ_AS_CAPITALS = str.maketrans(_FOLDED), str.maketrans(_LETTERS)
_AS_DIGITS = str.maketrans(_DIGITS)
_CAPITALS = str.maketrans(_TWO_FACED)
_BETWEEN_DIGITS = re.compile(rf"(?<=\d)[{''.join(_DIGITS)}]++(?=\d)")


def fold(text: str) -> str:
    """One spelling of the letters: unescaped, without what is invisible, NFKC, no accents,
    look-alikes as Latin, case-folded.
    """
    text = unescaped(text)
    if not text.isascii():
        text = visible(unicodedata.normalize("NFKC", visible(text)).translate(_APOSTROPHES))
        text = "".join(
            char for char in unicodedata.normalize("NFKD", text) if not _is_dressing(char)
        )
        text = unicodedata.normalize("NFKC", latin(unicodedata.normalize("NFKC", text)).casefold())
        text = latin_when_folded("".join(char for char in text if not _is_dressing(char)))
    return text.replace("`", "'").casefold()


def unadorned(text: str) -> str:
    """A folded text without the signs that may stand around or between its words in place of a
    space.
    """
    return _STAMP.sub(r"\1 \2", _ORNAMENT.sub(" ", text))


def unescaped(text: str) -> str:
    r"""The text without escapes, also nested ones: \n, \u00fc and \xfc of JSON and code, &amp; of
    HTML, %20 of URLs, =20 of mails, word-\nbreaks.
    """
    for _ in range(ESCAPED_AT_MOST):
        before = text
        if "\\" in text:
            text = _ESCAPE.sub(_character, _BYTES.sub(_characters, text))
        if "&" in text:
            text = html.unescape(text)
        if "%" in text:
            text = _URL_ENCODED.sub(
                lambda match: unquote_plus(match[0]) if "%" in match[0] else match[0], text
            )
        if "=" in text:
            text = _QUOTED_PRINTABLE.sub(_quoted, text)
        if text == before:
            break
    return _BROKEN.sub("", text) if "-" in text or "\u00ad" in text else text


def _characters(match: re.Match[str]) -> str:
    found = bytes.fromhex(re.sub(r"\\+x", "", match[0]))
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found.decode("latin-1")


def _quoted(match: re.Match[str]) -> str:
    """The characters of a run of quoted-printable; what is no UTF-8 is no such run."""
    try:
        return bytes.fromhex(match[0].replace("=", "")).decode() if "\n" not in match[0] else ""
    except UnicodeDecodeError:
        return match[0]


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else " " if match[2] else ""


def visible(text: str) -> str:
    """The text without what is invisible."""
    return _IGNORABLE.sub("", text)


def latin(text: str) -> str:
    """The text, before its case is folded, with what depends on case as a reader sees it: signs,
    and capitals such as Η, which is H in a Latin word although η is n. Letters that look like
    digits are digits between digits.

    The capitals of a word that has other letters than look-alikes stay; so do those of a word of
    look-alikes only, in a text with such words or without any Latin letter.
    """
    text = text.translate(_SIGNS)
    text = _BETWEEN_DIGITS.sub(lambda match: match[0].translate(_AS_DIGITS), text)
    if not any(char in _TWO_FACED for char in set(text)):
        return text
    words = set(_WORD.findall(text))
    has_latin = any(char.isascii() for word in words for char in word)
    foreign = {_alphabet(word) for word in words if not word.translate(_READ_AS_CAPITALS).isascii()}

    def capitals(match: re.Match[str]) -> str:
        word = match[0]
        if not word.translate(_READ_AS_CAPITALS).isascii():
            return word
        mixed = any(char.isascii() for char in word)
        is_latin = mixed or (has_latin and _alphabet(word) not in foreign)
        return word.translate(_CAPITALS) if is_latin else word

    return _WORD.sub(capitals, text)


def latin_when_folded(text: str) -> str:
    """A case-folded text of any alphabet with each look-alike as the Latin letter, whatever stands
    beside it.
    """
    return text.translate(_READ)


def _alphabet(word: str) -> str:
    return unicodedata.name(word[0], "").partition(" ")[0]


def _is_dressing(char: str) -> bool:
    """Accents on letters, and characters of format; the vowel signs of other scripts stay."""
    return "\u0300" <= char <= "\u036f" or unicodedata.category(char) in ("Cf", "Me")
