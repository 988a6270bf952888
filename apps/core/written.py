"""The ways in which a text may be written: in any case, composed or decomposed, with its spaces as
line breaks, and escaped as in JSON (also in JSON within JSON), in addresses, in HTML and in mail
(quoted-printable); a phone number also with other separators. And where it ends: `ann@x.com` is not
in `mary.ann@x.com`.

Patterns are such that Python and PostgreSQL read them alike.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from html.entities import codepoint2name
from typing import NamedTuple

# Scripts that put no spaces between words, or join endings to them: a name has no edges there.
JOINED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u31ff\u3400-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
IS_JOINED = re.compile(f"[{JOINED}]")
# Bounded, so that no text that somebody sends makes the search slow.
SLASHES, PERCENT = r"\\{1,16}", "%(?:25){0,4}"
SPACE = (
    r"(?:\s|[\u00a0\u00ad\u1680\u2000-\u200f\u2028\u2029\u202f\u205f\u2060\u3000\ufeff]|\+|&nbsp;|"
    rf"{SLASHES}(?:[nrt]|u00a0)|{PERCENT}(?:20|0a|0d|09|c2{PERCENT}a0)|=(?:20|c2=a0)){{1,40}}"
)
BETWEEN_DIGITS = (
    rf"(?:[-./()\s\u00a0\u2010-\u2015\u202f]|\+|&nbsp;|{SLASHES}[nrt]|"
    rf"{PERCENT}(?:20|28|29|2d|2e|2f|c2{PERCENT}a0)){{0,3}}"
)
PHONE = re.compile(r"[+(]?\d[\d\s()./\u00a0\u2010-\u2015-]{5,}\d")
IPV4 = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
FEWEST_DIGITS = 7  # of a phone number
MOST = 24  # characters of a word that `begins` looks for
WIDEST = 80  # bytes of a character, however it is written
AROUND = 256  # characters that are looked at on each side of a word


class Word:
    """A text that is looked for where it stands for itself: no letter or digit before or after it,
    nor one that a sign joins to it (`joins`).
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(unicodedata.normalize("NFC", text).split())
        self.parts = "".join(_parts(self.text))
        self.compiled = re.compile(self.parts, re.IGNORECASE)
        tokens = self.text.split(" ")
        self.first, self.last = tokens[0], tokens[-1]
        self.is_phrase = len(tokens) > 1

    def end_at(self, text: str, start: int) -> int | None:
        """Where it ends, if it begins at `start` and stands for itself."""
        found = self.compiled.match(text, start)
        if not found:
            return None
        before, after = text[max(0, start - AROUND) : start], text[found.end() :][:AROUND]
        plus_is_space = "%" in found[0] or (
            "@" not in self.text and "=" in before[before.rfind(" ") + 1 :]
        )
        goes_on = self._goes_on(before, _LAST, self.first, plus_is_space) or self._goes_on(
            after, _FIRST, self.last, plus_is_space
        )
        return None if goes_on else found.end()

    def _goes_on(
        self, beside: str, take: Callable[[str], Sign], token: str, plus_is_space: bool
    ) -> bool:
        """Whether what is beside this token continues it."""
        at_end = take is _FIRST
        sign = take(ESCAPED_SIGN.sub("", beside))
        if IS_JOINED.match(token[-1 if at_end else 0]):
            return at_end and _changes_what_is_before(sign.character)
        if is_letter(sign.character):
            return True
        signs = ""
        while sign.character in JOINERS and sign.character and len(signs) < 8:
            if sign.written == "+" and plus_is_space:
                return False
            signs += HYPHENS.get(sign.character, sign.character)
            sign = take(sign.rest)
        return is_letter(sign.character) and self.joins(signs, sign.character, token, at_end)

    def joins(self, signs: str, other: str, token: str, at_end: bool) -> bool:
        """Whether these signs make one of the token and of what begins with the letter `other`.

        A hyphen and underscores join names (`Mary-Ann Example`); in an identifier dots, `@` and `+`
        do, too. A number is joined by a dot or plus to numbers only (`No.4711`), what follows the
        domain of an address not by a plus, and what stands before an address also by an apostrophe
        (`o'brien@x.com`).
        """
        if not signs:
            return False
        if signs == "'":
            return "@" in token and not at_end
        is_name = self.is_phrase and all(one.isalpha() or one in "-'’" for one in token)
        if is_name:
            return signs == "-" or set(signs) == {"_"}
        if set(signs) <= {"-", "_"}:
            return True
        if signs == "+" and "@" in token and at_end:
            return False
        if signs in (".", "+") and not any(map(str.isalpha, token)):
            return other.isdigit()
        return signs in (".", "+", "@")


def begins(word: str) -> str:
    """A pattern of the word's beginning, wherever it is, for PostgreSQL."""
    return "".join(_parts(" ".join(unicodedata.normalize("NFC", word).split()))[:MOST])


def longest(words: Iterable[str]) -> int:
    """Bytes that one of the words takes at most, with what stands around it on both sides."""
    return WIDEST * (max(map(len, words), default=0) + 2) + 8 * AROUND


def is_letter(character: str) -> bool:
    """A letter, a digit, or a mark on one, of a script in which words have edges."""
    if not character or IS_JOINED.match(character):
        return False
    kind = unicodedata.category(character)
    return kind[0] in "LM" or kind in ("Nd", "Nl")


def _changes_what_is_before(character: str) -> bool:
    """A mark, or a part of a Korean syllable that is written in parts."""
    return bool(character) and (
        unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff"
    )


def _parts(word: str) -> list[str]:
    """The patterns of its characters."""
    digits = [one for one in word if one.isdecimal()]
    if len(digits) >= FEWEST_DIGITS and PHONE.fullmatch(word) and not IPV4.fullmatch(word):
        return [digits[0], *(BETWEEN_DIGITS + one for one in digits[1:])]
    return [SPACE if character == " " else _character(character) for character in word]


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
    in_mail = "".join(f"={byte:02x}" for byte in text.encode())
    named = [codepoint2name.get(ord(character), "#") for character in text]
    in_html = "".join(
        f"&(?:amp;){{0,3}}(?:#0{{0,4}}{ord(character)}|#x0{{0,4}}{ord(character):x}|{name});"
        for character, name in zip(text, named, strict=True)
    )
    plain = (
        re.escape(text) if text.isalnum() or not text.isascii() else rf"\\{{0,16}}{re.escape(text)}"
    )
    return [plain, in_json, in_address, in_mail, in_html]


# What stands beside a word


class Sign(NamedTuple):
    """The first or last character of a text, "" if there is none, however it is written."""

    character: str
    written: str
    rest: str


HYPHENS = {"\u2010": "-", "\u2011": "-"}
JOINERS = {*"-_.+@'", *HYPHENS}
ESCAPED_SIGN = re.compile(r"\\+(?=[-_.+@])")


def _json(found: str) -> str:
    units = "".join(re.findall(r"u([0-9a-f]{4})", found, re.IGNORECASE))
    return bytes.fromhex(units).decode("utf-16-be", "replace") if units else " "


def _bytes(found: str, at_end: bool) -> tuple[str, int]:
    """The character that escaped bytes begin or end with, and how many they are; ("", 0) if they
    are none.
    """
    data = bytes(int(one, 16) for one in re.findall(r"[%=](?:25)*([0-9a-fA-F]{2})", found))
    for n in range(1, len(data) + 1):
        try:
            return (data[-n:] if at_end else data[:n]).decode(), n
        except UnicodeDecodeError:
            continue
    return "", 0


def _entity(found: str) -> str:
    for _ in range(4):
        found = html.unescape(found)
    return found if len(found) == 1 else ""


UNIT = rf"{SLASHES}u[0-9a-f]{{4}}"
IN_JSON = (
    rf"(?:{SLASHES}ud[89ab][0-9a-f]{{2}}{SLASHES}ud[c-f][0-9a-f]{{2}}|{UNIT}|{SLASHES}[nrtbf])"
)
IN_HTML = r"&(?:amp;){0,3}(?:#\d{1,7}|#x[0-9a-f]{1,6}|[a-z][a-z0-9]{1,31});"
BYTE = f"{PERCENT}[0-9a-f]{{2}}"
IN_MAIL = "=[0-9A-F]{2}"  # only what is no name=value, so one with a letter


def _taker(at_end: bool) -> Callable[[str], Sign]:
    def anchored(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
        return re.compile(rf"(?:{pattern})\Z" if at_end else rf"\A(?:{pattern})", flags)

    in_json, in_html = anchored(IN_JSON), anchored(IN_HTML)
    of_bytes = (
        (anchored(f"(?:{BYTE}){{1,4}}"), re.compile(BYTE, re.IGNORECASE)),
        (anchored(f"(?:{IN_MAIL}){{1,4}}", 0), re.compile(IN_MAIL)),
    )

    def sign(text: str, character: str, written: str) -> Sign:
        rest = text[: len(text) - len(written)] if at_end else text[len(written) :]
        return Sign(character, written, rest)

    def take(text: str) -> Sign:
        if found := in_json.search(text):
            return sign(text, _json(found[0]), found[0])
        if (found := in_html.search(text)) and (character := _entity(found[0])):
            return sign(text, character, found[0])
        for pattern, one in of_bytes:
            if found := pattern.search(text):
                character, n = _bytes(found[0], at_end)
                written = one.findall(found[0])
                taken = "".join(written[-n:] if at_end else written[:n])
                if character and (taken[0] == "%" or any(map(str.isalpha, taken))):
                    return sign(text, character, taken)
        return sign(text, text[-1:], text[-1:]) if at_end else sign(text, text[:1], text[:1])

    return take


_LAST, _FIRST = _taker(at_end=True), _taker(at_end=False)
