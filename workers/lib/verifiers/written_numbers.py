"""Rewrites the numbers in a sentence of any language in one notation. Pure.

The digits of any script become 0–9, groups of digits are joined whatever separates them, and words
of size, share and sign become digits, % and − (magnitudes.txt). What cannot be read in one way
stays as it is or gets a ‱, so that `numbers` refuses it as a part of something larger.
"""

from __future__ import annotations

import html
import re
import unicodedata
from decimal import Decimal

from workers.lib.magnitudes import KINDS, UNSPACED, after_numbers

UNCLEAR = "‱"
CJK_SIZES = "".join(word for word in KINDS if len(word) == 1 and UNSPACED.match(word))
# Words in these scripts have spaces around them, so digits next to a letter belong to a name
# (H2O18, x_1); not in USD5, nor in 约5.
LETTER = "[A-Za-zÀ-ɏͰ-ԯ]"
CODES = "usd|eur|gbp|jpy|inr|chf|cad|aud|cny|krw|sek|nok|dkk|pln|brl|mxn"
_BEGIN = rf"(?:(?<![\d_.,^])(?<!{LETTER})|(?<=(?i:\b(?:{CODES}))))"
_AFTER = re.compile(
    rf"{_BEGIN}(?P<number>\d[\d,]*+(?>(?:\.\d++)?))(?:"
    rf" ?(?P<word>{after_numbers()})"
    rf"|(?P<letter>(?-i:[kKMB]))(?!{LETTER}|[\d_]))",
    re.IGNORECASE,
)
_NEGATIVE = "|".join(word for word, kind in KINDS.items() if kind == "-")
_MINUS = re.compile(
    rf"(?<!{LETTER})(?<!\d)(?:{_NEGATIVE})\s?(?=\d)"
    r"|(?<!\S)–(?=\d)",
    re.IGNORECASE,
)
_LETTERS = {"k": 3, "M": 6, "B": 9}
# LaTeX between digits: marks in braces, and spaces.
_MARK = re.compile(r"\\(?:text|math[a-z]+)\{([.,])\}|\{([.,])\}")
_NO_SPACE = re.compile(r"(?<=[\d.,])\\!|\\!(?=[.,])")
_SPACE = re.compile(
    r"(?<=\d)(?:\\[,;: ]|~(?=\d{3}(?!\d))|\\(?:thin|med|thick|en)space(?![a-z])\s?"
    r"|\\[hm]s(?:pace|kip)\{[^{}\n]*\})(?=\d)"
)
# Signs that people and languages put between groups of three digits: any space, quotation mark or
# accent that Unicode knows.
_BETWEEN = "".join(
    re.escape(char)
    for char in map(chr, range(0x80, 0x10000))
    if unicodedata.category(char) in ("Zs", "Sk", "Lm", "Pi", "Pf", "Pc")
)
_GROUPS = re.compile(
    rf"{_BEGIN}(\d{{1,3}}(?P<by>[ '`_·٬′{_BETWEEN}])\d{{3}}(?:(?P=by)\d{{3}})*)"
    r"(?P<rest>[.,]\d+)?(?![\d_/]| ?/|[.,]\d)"
)
_BY_DOTS = re.compile(rf"{_BEGIN}(\d{{1,3}}(?:\.\d{{3}})+),(\d+)(?![\d_/]|[.,]\d)")
_DOTS_ONLY = re.compile(rf"{_BEGIN}\d{{1,3}}(?:\.\d{{3}}){{2,}}(?![\d_/]|[.,]\d)")
_RAISED = re.compile("[⁻⁰¹²³⁴-⁹]+")
_SUBSCRIPT = re.compile(rf"(?<={LETTER})[₀-₉]+|(?<=[)\]}}])[₀-₉]+")
_LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "-01234567890123456789")
_SIGNS = str.maketrans({"٪": "%", "٫": ".", "٬": ",", "⁄": "/", "‐": "-", "‑": "-", "‒": "-"})


def rewritten(text: str) -> str:
    """The sentence with its numbers in one notation: 1'018 as 1018, 18 Mio. as 18000000."""
    return _MINUS.sub("-", _AFTER.sub(_with_size, joined(text)))


def joined(text: str) -> str:
    """The same without words: only digits, their separators and signs."""
    text = html.unescape(text) if "&" in text else text
    text = _RAISED.sub(lambda part: f"^{part[0].translate(_LOWERED)}", text)
    text = _SUBSCRIPT.sub(lambda part: f"_{part[0].translate(_LOWERED)}", text)
    if not text.isascii():
        text = "".join(map(_plain, text.translate(_SIGNS)))
    text = _NO_SPACE.sub("", _MARK.sub(r"\1\2", text).replace("\\%", "%"))
    text = _BY_DOTS.sub(_without_dots, _SPACE.sub("\u2009", text))
    return _GROUPS.sub(_whole, _DOTS_ONLY.sub(_thousands, text))


def _plain(char: str) -> str:
    """A digit of any script, or a sign in another width, as ASCII; "" for what is invisible."""
    if char.isascii():
        return char
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if unicodedata.category(char) == "Cf":
        return ""
    if "\uff01" <= char <= "\uff5e" or "\ufe50" <= char <= "\ufe6b":
        return unicodedata.normalize("NFKC", char)
    return char


def _without_dots(match: re.Match) -> str:
    return f"{match[1].replace('.', '')}.{match[2]}"


def _thousands(match: re.Match) -> str:
    """1.234.567, unless it may be an address such as 10.100.200.250."""
    parts = match[0].split(".")
    is_address = len(parts) == 4 and all(int(part) < 256 for part in parts)
    return match[0] if is_address else "".join(parts)


def _whole(match: re.Match) -> str:
    rest = match["rest"] or ""
    return match[1].replace(match["by"], "") + (f".{rest[1:]}" if rest else "")


def _with_size(match: re.Match) -> str:
    if match["letter"]:
        kind = str(_LETTERS.get(match["letter"], 3))
    else:
        kind = KINDS[match["word"].casefold()]
    if kind == "%":
        return f"{match['number']}%"
    if kind in "‰?":
        return f"{match['number']}{UNCLEAR}"
    value = _times(Decimal(match["number"].replace(",", "")), kind)
    return f"{value:f}" if len(value.as_tuple().digits) <= 20 else match["number"] + UNCLEAR


def _times(value: Decimal, kind: str) -> Decimal:
    return value * int(kind[1:]) if kind[0] == "×" else value.scaleb(int(kind))
