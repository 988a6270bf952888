"""The ways in which a text may be written: in any case, composed or decomposed, with its spaces as
line breaks, and escaped as in JSON (also in JSON within JSON), in addresses and in HTML.

Patterns are such that Python and PostgreSQL read them alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from html.entities import codepoint2name

# Scripts that put no spaces between words, or join endings to them: a name has no edges there.
JOINED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
IS_JOINED = re.compile(f"[{JOINED}]")
LETTER = rf"[^\W{JOINED}]"
# A letter before a word is none if it ends an escape.
ESCAPES = [r"\\[nrtbf]", r"\\u[0-9a-f]{4}", *(f"%{'25' * n}[0-9a-f]{{2}}" for n in range(3))]
BEGINS = f"(?:(?<!{LETTER})|{'|'.join(f'(?<={escape})' for escape in ESCAPES)})"
ENDS = rf"(?!{LETTER})"
# Bounded, so that no text that somebody sends makes the search slow.
SLASHES, PERCENT = r"\\{1,16}", "%(?:25){0,4}"
SPACE = (
    r"(?:\s|[\u00a0\u00ad\u1680\u2000-\u200f\u2028\u2029\u202f\u205f\u2060\u3000\ufeff]|\+|&nbsp;|"
    rf"{SLASHES}(?:[nrt]|u00a0)|{PERCENT}(?:20|0a|0d|09|c2{PERCENT}a0)){{1,40}}"
)
MOST = 24  # characters of a word that `begins` looks for
WIDEST = 80  # bytes of a character, however it is written


def whole(word: str) -> str:
    """A pattern of the word where it stands for itself, for Python."""
    parts = _parts(word)
    begins = "" if IS_JOINED.match(word[0]) else BEGINS
    ends = "" if IS_JOINED.match(word[-1]) else ENDS
    # The first character before the look behind it: most places are left at once.
    return f"(?={parts[0]}){begins}{''.join(parts)}{ends}"


def begins(word: str) -> str:
    """A pattern of the word's beginning, wherever it is, for PostgreSQL."""
    return "".join(_parts(word[:MOST]))


def longest(words: Iterable[str]) -> int:
    """Bytes that one of the words takes at most, with what stands around it."""
    return WIDEST * (max(map(len, words), default=0) + 2)


def _parts(word: str) -> list[str]:
    """The patterns of its characters."""
    spaced = " ".join(unicodedata.normalize("NFC", word).split())
    return [SPACE if character == " " else _character(character) for character in spaced]


@lru_cache(4096)
def _character(one: str) -> str:
    if one.isascii() and one.isalnum():
        return one
    cases = {one, one.lower(), one.upper(), one.casefold()}
    cases |= {unicodedata.normalize("NFD", case) for case in cases}
    forms = {form for case in cases for form in _forms(case)}
    return f"(?:{'|'.join(sorted(forms, key=lambda form: (-len(form), form)))})"


def _forms(text: str) -> list[str]:
    units = text.encode("utf-16-be").hex()
    in_json = "".join(rf"{SLASHES}u{units[at : at + 4]}" for at in range(0, len(units), 4))
    in_address = "".join(f"{PERCENT}{byte:02x}" for byte in text.encode())
    named = [codepoint2name.get(ord(character), "#") for character in text]
    in_html = "".join(
        f"&(?:amp;){{0,3}}(?:#0{{0,4}}{ord(character)}|#x0{{0,4}}{ord(character):x}|{name});"
        for character, name in zip(text, named, strict=True)
    )
    plain = (
        re.escape(text) if text.isalnum() or not text.isascii() else rf"\\{{0,16}}{re.escape(text)}"
    )
    return [plain, in_json, in_address, in_html]
