"""Numbers as people write them, alone or in a sentence. Pure.

A sign, a fraction, a power or a percent sign next to the digits belongs to the number. The digits
of a date, a time, a ratio or a version are not a number, and a part of a larger number never is
one: 1'018 is 1018 and never 18.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, DecimalException
from typing import Any

from workers.lib.maths.units import unit_of
from workers.lib.verifiers.written_numbers import CJK_SIZES, CODES, LETTER, joined, rewritten

LONGEST_NUMBER = 100
_ONE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,2}(?:,\d{2})+,\d{3}(?!\d)|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,4})?"  # noqa: E501
_SIGN = r"(?P<sign>[-+−]?)"
_NUMBER = re.compile(
    rf"{_SIGN}(?:(?P<whole>\d{{1,3}}) (?=\d+ ?/))?(?P<top>{_ONE})(?: ?/"
    rf" ?(?P<bottom>(?=[\d.]){_ONE}))?"
)
_POWER = re.compile(
    rf"{_SIGN}(?:(?P<times>{_ONE}) ?[×x·*]"
    rf" ?)?(?P<base>{_ONE})(?:\^|\*\*)(?P<brace>\{{)?(?P<power>[-+−]?\d{{1,4}})(?(brace)\}})"
)

# In a sentence: first everything that is not a number. Possessive, so that each character is read
# only once.
_FOUND = r"(?:\d[\d,]*+(?>(?:\.\d++)?)|\.\d++)(?>(?:[eE][-+]?\d{1,4})?)"
_NAME = rf"(?<![\\\w])(?!(?:{CODES})\d)_*+{LETTER}(?>(?:{LETTER}|_)*)\d\w*+(?>(?:\.\d++)*)|(?<=[\w)\]}}])_\{{?\d++\}}?"  # noqa: E501
# f(18), gcd(12, 18), log_2 8, \sin 18; a bare name only where no word follows: people log 18 hours.
_BARE = r"(?:arc)?(?:sin|cos|tan|cot|csc)h?|log|ln|lg|sqrt"
_FUNCTION = rf"(?:{_BARE}|sec|exp|floor|ceil|round|abs|gcd|lcm|det|max|min)"
_BASE = r"(?:(?:_|\^)\{?[-+−]?\d{1,9}\}?)?"
_APPLIED = (
    rf"(?<![A-Za-z])(?:\\?{_FUNCTION}{_BASE} ?\([^()\n]{{1,60}}\)|[A-Za-z]\([-+−]?{_FOUND}\))"
    rf"|\\{_FUNCTION}{_BASE} ?\{{?[-+−]?{_FOUND}\}}?"
    rf"|(?<![A-Za-z\\])(?:{_BARE}){_BASE} [-+−]?{_FOUND}(?! ?[A-Za-z]{{2}})"
)
# What has digits, and is not a number that can be read: 0x12, 12h30, e^{18}, √18, 1½, 18‰, 18π, and
# digits with anything between them but a space, a bracket or the sign of an equation: 5'6, 3|950.
_ODD = "[¼-¾⅐-⅞₀-₉①-⓿❶-➓]"
_JOINT = r"[^\w\s=≈≡≅<>≤≥→⇒|/()\[\]{}。、\-–−]{1,2}|[ʰ-˿]"
_UNCLEAR = (
    rf"{_APPLIED}|0[xXbBoO][\da-fA-F_]++|\d++(?![eE][-+]?\d)[A-Za-z]++\d\w*+|\d*+{_ODD}++\d*+"
    rf"|{_FOUND}[{CJK_SIZES}]\d++"
    rf"|(?:[\^√∛∜]|\\sqrt(?:\[\d+\])?)\s*[{{(]?[-+−]?{_FOUND}[}})]?"
    rf"|{_FOUND} ?(?:[‰‱π√∛∜]|\\pi(?![a-z])|\\sqrt)|{_FOUND}[ij](?!\w)"
    rf"|\d[\d.,]*+(?>(?:(?:{_JOINT})\d[\d.,]*+)+)"
)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_TH = r"(?:st|nd|rd|th)?"
_NO_NUMBER = (
    r"(?<![\d.,])\d++(?P<by>[-/.:])\d++(?:(?P=by)\d++)+(?:[T"
    r" ]\d{1,2}(?>(?::\d{2})+))?|(?<![\d.,])\d++(?::\d++)+"
    rf"|\b\d{{4}}-(?:0[1-9]|1[0-2])\b|\b\d{{1,2}}{_TH} (?:of )?{_MONTH},? \d{{4}}\b|\b{_MONTH}"
    rf" \d{{1,2}}{_TH},? \d{{4}}\b"
)
_POWERS = rf"(?:{_FOUND} ?[×x·*] ?)?{_FOUND}(?:\^|\*\*)(?:\{{[-+−]?\d{{1,4}}\}}|[-+−]?\d{{1,4}})"
_PLAIN = rf"\d{{1,3}} \d{{1,4}} ?/ ?\d{{1,4}}(?![\d,.]\d|\d)|{_FOUND}(?: ?/ ?{_FOUND})?"
_DIGITS = rf"(?:(?<!\d)[-+−])?(?:{_POWERS}|{_PLAIN})"
_FIRST = re.compile(rf"{_NO_NUMBER}|(?P<number>{_DIGITS})", re.IGNORECASE)
# A sign may come before a currency's sign; ±5 and 5-7 are matched as a whole, and are then not
# numbers.
_SIGNED = r"(?:(?<![\d.])[-+−] ?(?=[$€£¥₹])|± ?)?(?:[$€£¥₹] ?)?(?:(?<!\d)[-+−])?"
_EACH = re.compile(
    rf"{_NO_NUMBER}|(?!{_APPLIED}){_NAME}|(?P<number>{_SIGNED}{_POWERS}|{_UNCLEAR}|{_FOUND}[-–−]{_FOUND}(?![\d.])"
    rf"|{_SIGNED}(?:{_PLAIN})(?: ?(?:%|per ?cent\b))?)",
    re.IGNORECASE,
)
_AMONG = re.compile(rf"(?<![\w.,])(?:{_NO_NUMBER}|(?P<number>{_DIGITS}))", re.IGNORECASE)
_PART = re.compile(r"\d+")
_WORD = re.compile(r"[^\W\d_]{2}")
_LATEX = re.compile(r"(\d?)\\[dtc]?frac\{(\d{1,40})\}\{(\d{1,40})\}")
_LATEX_SPACE = re.compile(r"\\(?:text|mathrm|rm)(?![a-z])|\\[,;:! ]|[{}$~]")
_ENDS_IN_POWER = re.compile(r"\^\s*[-+−]?\d$")
_TIMES = re.compile(r"(?:(?<!\s)\s++)?\\(?:times|cdot)(?![a-z])\s*(?=10\s*\^)")


def decimal_of(text: Any) -> Decimal | None:
    """1,234.5, −3, 1e6, 3/4, 1 4/5, 10^6, 2 × 10^6. None for anything else, and for more than 100
    characters.
    """
    text = str(text).strip()
    if not text or len(text) > LONGEST_NUMBER:
        return None
    try:
        if found := _NUMBER.fullmatch(text):
            value = _value(found["top"])
            if found["bottom"]:
                value /= _value(found["bottom"])
            if found["whole"] and value >= 1:
                return None  # “2 9/3” is not a mixed number
            value = value + _value(found["whole"]) if found["whole"] else value
        elif found := _POWER.fullmatch(text):
            value = _value(found["base"]) ** _value(found["power"]) * _value(found["times"] or "1")
        else:
            return None
    except (DecimalException, ValueError):
        return None
    return (
        value.copy_negate() if found["sign"] in ("-", "−") else value
    )  # exact, whereas -value is rounded


def _value(text: str) -> Decimal:
    return Decimal(text.replace(",", "").replace("−", "-"))


def last_number(text: str) -> str:
    """The last number in a sentence as it is written, including a percent sign, but without
    separators of groups other than commas; "" if there is none.
    """
    text = _LATEX.sub(
        lambda part: f"{part[1]}{' ' if part[1] else ''}{part[2]}/{part[3]}", rewritten(text)
    )
    text = _TIMES.sub(" × ", text)
    last, powers = None, []
    for match in _EACH.finditer(text):
        if match["number"] and match["number"][0] == "^":
            powers.append(match)
        elif match["number"]:
            last, powers = match, []
    others = (power for power in reversed(powers) if not (last and _is_of_unit(text, last, power)))
    last = next(others, last)
    if last is None or _is_factorial(text, last):
        return "" if last is None else f"{last['number']}!"
    return last["number"].rstrip(",")


def _is_of_unit(text: str, number: re.Match, power: re.Match) -> bool:
    """Whether a power belongs to the unit of the number before it: m/s^2; not t^2."""
    if power.end() - number.end() > LONGEST_NUMBER:
        return False
    name = _LATEX_SPACE.sub(" ", text[number.end() : power.end()])
    name = name.rpartition("(")[2].strip(") ")
    unit = unit_of(name) if _ENDS_IN_POWER.search(name) else None
    return unit is not None and ("/" in name or any(kind == "length" for kind, _ in unit.measures))


def _is_factorial(text: str, number: re.Match) -> bool:
    """Whether the exclamation mark after a number belongs to it: in a formula, not a sentence."""
    after = text[number.end() : number.end() + 2]
    if after[:1] != "!":
        return False
    before = text[text.rfind("\n", 0, number.start()) + 1 : number.start()].rstrip()
    is_formula = before[-1:] in ("=", "+", "*", "/", "(", "·", "×", "$", "{")
    return is_formula or after[1:] in tuple("$)=}/*^") or not _WORD.search(before)


def first_number(text: str) -> tuple[str, str, str] | None:
    """(the text before, the first number, the text after); None if there is none, or if something
    else with digits comes first.
    """
    text = joined(text)
    found = _FIRST.search(text)
    if found is None or not found["number"]:
        return None
    return text[: found.start()], found["number"], text[found.end() :]


def other_numbers(one: str, other: str) -> bool:
    """Whether two texts have equally many numbers and dates, of which at least one differs: 3.5 km
    and 35 km, 1/2 and
    12. Digits after a letter (v1.2) are part of a name.
    """
    found, wanted = (list(_among(text)) for text in (one, other))
    kinds = [[type(value) for value in values] for values in (found, wanted)]
    return kinds[0] == kinds[1] and found != wanted


def _among(text: str) -> Iterator[Decimal | tuple[str, ...] | None]:
    """Each number, or the parts of each date, time or version; None for anything that cannot be
    parsed.
    """
    for match in _AMONG.finditer(text):
        if match["number"]:
            yield decimal_of(match["number"].rstrip(","))
        else:
            yield tuple(part.lstrip("0") for part in _PART.findall(match[0]))
