"""Amounts and dates written as text. Pure; anything ambiguous is not parsed.

Babel and dateutil guess (dateutil reads “1/2/2024” as the second of January, and 10 as a day of the
current month), so only unambiguous forms are listed here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from workers.lib.maths.units import currencies

LONGEST = 60  # characters
_WORDS = {"try", "cop", "pen", "php", "ron"}  # codes that are words, too, are not read
_CODES = {
    name: code
    for word, code in currencies().items()
    if word not in _WORDS
    for name in (word, f"{word}s")
    if name == word or re.fullmatch(r"[a-z]{4,}", word)
}
_SIGN = "|".join(sorted(map(re.escape, _CODES), key=len, reverse=True))
_DIGITS = (
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?"
    r"|\d{1,3}(?:[ '’]\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d{1,2}|\d+(?:\.\d+)?|\.\d+"
)
_AMOUNT = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[-+]?)\s*(?P<before>{_SIGN})?\s*(?P<inner>[-+]?)\s*(?P<digits>{_DIGITS})\s*(?P<after>{_SIGN}|%|percent|per"
    r" cent)?"
    r"\s*(?P<close>\))?",
    re.IGNORECASE,
)
_DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%Y%m%d",
    "%B %d %Y",
    "%b %d %Y",
    "%d %B %Y",
    "%d %b %Y",
    "%d-%b-%Y",
    "%d-%B-%Y",
)
_WEEKDAY = re.compile(
    r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?\s+", re.IGNORECASE
)
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)(?![a-z])(?: of)?", re.IGNORECASE)
_MONTH = re.compile(r"(?<=[A-Za-z])\.")
_NUMERIC = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})")
_PART = re.compile(r"\d{1,4}")
_LIKE_A_DATE = re.compile(r"\d{1,4}([/.-])\d{1,2}\1\d{1,4}")


@dataclass(frozen=True, slots=True)
class Amount:
    """`currency` is an ISO code, "" if none is named. Percentages are converted in the value."""

    value: Decimal
    currency: str = ""


def amount_of(text: str) -> Amount | None:
    """Parses -5, $1,000.50, 1.000,50 €, USD 5, 12 %, and ($5.00) as -5; None for anything else, or
    if it could be another amount.
    """
    text = " ".join(text[: LONGEST + 1].replace("−", "-").split())
    found = _AMOUNT.fullmatch(text) if len(text) <= LONGEST else None
    if (
        found is None
        or (found["sign"] and found["inner"])
        or bool(found["open"]) != bool(found["close"])
    ):
        return None
    after, digits = (found["after"] or "").lower(), found["digits"]
    is_share = after in ("%", "percent", "per cent")
    if found["before"] and after and not is_share:
        return None
    currency = _CODES.get((found["before"] or after).lower(), "")
    negative = "-" in (found["sign"] or found["inner"])
    if found["open"]:  # accounting notation for a loss; a bare number in brackets may be anything
        if negative or not (currency or re.search(r"[.,]", digits)):
            return None
        negative = True
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    value = Decimal(re.sub(r"[, '’]", "", digits)) / (100 if is_share else 1)
    return Amount(-value if negative else value, currency)


def same_currency(one: Amount, other: Amount) -> bool:
    """An amount without a currency matches any currency."""
    return not one.currency or not other.currency or one.currency == other.currency


def date_of(text: str) -> date | None:
    """The day that a text names: 2024-1-12, 12 January 2024, Fri, Jan. 12th, 2024, 13/1/2024; None
    for 1/2/2024.
    """
    text = " ".join(text[:LONGEST].replace(",", " ").split())
    text = _ORDINAL.sub("", _MONTH.sub("", _WEEKDAY.sub("", text, count=1)))
    if found := _NUMERIC.fullmatch(text):
        one, other, year = int(found[1]), int(found[3]), int(found[4])
        days = {(day, month) for day, month in ((one, other), (other, one)) if month <= 12}
        return _day(year, *days.pop()[::-1]) if len(days) == 1 else None
    for form in _DATES:
        try:
            return datetime.strptime(text, form).date()
        except ValueError:
            continue
    return None


def _day(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def same_quantity(given: str, wanted: str) -> bool | None:
    """Whether two texts are the same amount or the same day; None if they are not both amounts or
    both dates.

    An ambiguous date (1/2/2024) only equals one with the same numbers in the same order.
    """
    if _is_dated(given) and _is_dated(wanted):
        day, other_day = date_of(given), date_of(wanted)
        if day is None and other_day is None:
            return [int(part) for part in _PART.findall(given)] == [
                int(part) for part in _PART.findall(wanted)
            ]
        return day == other_day
    one, other = amount_of(given), amount_of(wanted)
    return (
        None
        if one is None or other is None
        else one.value == other.value and same_currency(one, other)
    )


def _is_dated(text: str) -> bool:
    return _LIKE_A_DATE.fullmatch(text.strip()) is not None or (
        not text.strip().isdigit() and date_of(text) is not None
    )
