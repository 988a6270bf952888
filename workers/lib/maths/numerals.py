"""Numbers as people write them (decimals, mixed numbers, bases, degrees in a trigonometric
function), converted to unambiguous LaTeX. Pure.
"""

from __future__ import annotations

import re
from fractions import Fraction


class Unreadable(Exception):
    """The text is not one unambiguous answer."""


_MIXED = re.compile(
    r"(?<![\d.}\w^_])(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(?<![\d.}\w^_])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])"
)
_RECURRING = re.compile(r"(\d*)\.(\d*)(?:\\overline\s*\{?\s*(\d+)\s*\}?|\\dot\s*\{?\s*(\d)\s*\}?)")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])|(?<![\d.])(\d+)\.(?![\d.])")
_NAMES = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_BASES = {word: base for base, word in enumerate(_NAMES.split(), 2)}
_BASED = re.compile(
    r"(?<![\w.}])(?:\(\s*(\d[\dA-F]*)\s*\)|\{\s*(\d[\dA-F]*)\s*\}|(\d[\dA-F]*))\s*_\s*(?:\{\s*(\w+)\s*\}|(\w))(?!\w)"
)
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])(?!\s*\^\s*\{?\s*-\s*1)")
_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_DEGREES = re.compile(
    rf"((?:{_NUMBER}\s*)?(?:\\[a-z]+|(?<![a-zA-Z\\])[a-zA-Z])|{_NUMBER}|\\frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}}|\([^()]*\))"
    r'\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-z]))|"?\s*(?:degrees?|deg)(?![a-z])\s*"?)'
)


def in_radians(text: str) -> str:
    """Convert the angle in sin 30° to radians. Without such a function, degrees are the unit of the
    answer and stay.
    """
    if not _TRIGONOMETRIC.search(text):
        return text
    text = _DEGREES.sub(r"(\1 \\cdot \\frac{\\pi}{180})", text)
    if "\\circ" in text:
        raise Unreadable("an angle in degrees that is not clear")
    return text


def exact(text: str) -> str:
    """The text with every number as an integer or a fraction. Raises Unreadable."""
    text = _BASED.sub(_based, text)
    if re.search(r"[\d)}]\s*_", text):
        raise Unreadable("a number with an index that is no base")
    text = _RECURRING.sub(lambda m: _fraction(m[1], m[2], m[3] or m[4]), text)
    text = _MIXED.sub(lambda m: _mixed(*(int(part) for part in m.groups() if part)), text)
    return _DECIMAL.sub(lambda m: _fraction(m[1], m[2] or "", "") if m[3] is None else m[3], text)


def _based(match: re.Match) -> str:
    digits, base = match[1] or match[2] or match[3], match[4] or match[5]
    try:
        return str(int(digits, _BASES[base] if base in _BASES else int(base)))
    except ValueError as error:
        if digits.isdigit():
            raise Unreadable(f"no number in base {base}: {digits}") from error
        return match[0]  # a product such as 2A_1


def _fraction(whole: str, digits: str, recurring: str) -> str:
    """The exact fraction of a decimal number, in lowest terms."""
    top, bottom = int(whole + digits or "0"), 10 ** len(digits)
    if recurring:
        top = int(whole + digits + recurring) - top
        bottom *= 10 ** len(recurring) - 1
    return _written(Fraction(top, bottom))


def _mixed(whole: int, top: int, bottom: int) -> str:
    if not bottom:
        raise Unreadable("a fraction by 0")
    return _written(whole + Fraction(top, bottom))


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return f"({value.numerator})"
    return f"(\\frac{{{value.numerator}}}{{{value.denominator}}})"
