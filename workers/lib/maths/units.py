"""Units after a number: what they measure, and their size. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BASE = {
    "m": ("length", "1", "meter metre"),
    "km": ("length", "1000", "kilometer kilometre"),
    "cm": ("length", "1/100", "centimeter centimetre"),
    "mm": ("length", "1/1000", "millimeter millimetre"),
    "in": ("length", "254/10000", "inch inche"),
    "ft": ("length", "3048/10000", "foot feet"),
    "yd": ("length", "9144/10000", "yard"),
    "mi": ("length", "1609344/1000", "mile"),
    "g": ("mass", "1", "gram"),
    "kg": ("mass", "1000", "kilogram"),
    "mg": ("mass", "1/1000", "milligram"),
    "lb": ("mass", "45359237/100000", "pound"),
    "oz": ("mass", "45359237/1600000", "ounce"),
    "s": ("time", "1", "sec second"),
    "ms": ("time", "1/1000", "msec millisecond"),
    "min": ("time", "60", "minute"),
    "h": ("time", "3600", "hr hour"),
    "d": ("time", "86400", "day"),
    "week": ("time", "604800", ""),
    "month": ("month", "1", ""),
    "year": ("month", "12", "yr"),
    "L": ("volume", "1", "l liter litre"),
    "mL": ("volume", "1/1000", "ml milliliter millilitre"),
    "rad": ("angle", "1", "radian"),
    "deg": ("angle", "\\pi/180", "degree °"),
    "USD": ("dollars", "1", "dollar $"),
    "cent": ("dollars", "1/100", "¢"),
    "EUR": ("euros", "1", "euro €"),
    "GBP": ("sterling", "1", "£"),
    "N": ("force", "1", "newton"),
    "J": ("energy", "1", "joule"),
    "W": ("power", "1", "watt"),
    "K": ("kelvin", "1", "kelvin"),
    "celsius": ("celsius", "1", ""),
    "fahrenheit": ("fahrenheit", "1", ""),
}
UNITS = {name: unit[:2] for name, unit in _BASE.items()} | {
    alias: (what, size) for what, size, aliases in _BASE.values() for alias in aliases.split()
}
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}  # powers of ten
_ALIKE = {
    "kph": "km/h",
    "kmh": "km/h",
    "mph": "mi/h",
    "sq": "square",
    "cu": "cubic",
    "%": "percent",
}
_DEGREES_OF = re.compile(r"\b(?:degrees?|deg)\s+(?=celsius|fahrenheit)", re.IGNORECASE)
_PART = re.compile(r"(?:(square|cubic)\s+)?([A-Za-z°$¢€£]+)\s*(?:\^\s*\{?(\d)\}?)?")
# A noun that counts things is not a unit of measure; these change the number instead.
_NO_NOUN = re.compile(
    r".*(?:ths|rds|lves|ed|ly)|(?:dozen|quarter|half|score|time|power|hundred|thousand|million|billion|percent|factorial|root|nan)s?"
    r"|plus|minus|less|more|fewer|not|and|but"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """`measures`: sorted (dimension, power) pairs; `size`: factor to the base units, as text for
    the parser.
    """

    measures: tuple[tuple[str, int], ...]
    size: str = "1"

    @property
    def is_angle(self) -> bool:
        return self.measures == (("angle", 1),)

    @property
    def is_count(self) -> bool:
        """Whether it counts things: apples, students."""
        return len(self.measures) == 1 and self.measures[0][0].startswith("count of ")


def unit_of(text: str, *, named: bool = True) -> Unit | None:
    """The unit in a text such as cm, km/h, square meters, m^2, dollars per hour, apples; None if
    the words are not a unit. Unless `named` as text, things are only recognised in the plural.
    """
    words = " ".join(
        _ALIKE.get(word.strip("."), word.strip(".")) for word in _DEGREES_OF.sub("", text).split()
    )
    measures: dict[str, int] = {}
    sizes: list[str] = []
    for at, side in enumerate(re.split(r"\s*/\s*|\s+per\s+", words)):
        rest = side.replace("\\cdot", " ").strip()
        while rest:
            found = _PART.match(rest)
            known = None if found is None else _known(found[2])
            if found is None or known is None:
                return _noun(text, named) if at == 0 and rest == words else None
            power = int(found[3] or {"square": 2, "cubic": 3}.get(found[1] or "", 1)) * (
                1 if at == 0 else -1
            )
            measures[known[0]] = measures.get(known[0], 0) + power
            sizes.append(f"({known[1]})^{{{power}}}")
            rest = rest[found.end() :].strip()
    return Unit(tuple(sorted(measures.items())), " \\cdot ".join(sizes)) if sizes else None


def _known(word: str) -> tuple[str, str] | None:
    lower = word.lower()
    for name in (word, lower, lower.removesuffix("s")):
        if name in UNITS and (len(name) > 1 or name == word):
            return UNITS[name]
    return None


def _noun(text: str, named: bool) -> Unit | None:
    word = text.strip().lower()
    is_noun = re.fullmatch(
        r"[a-z]{3,}" if named else r"[a-z]{3,}s", word
    ) and not _NO_NOUN.fullmatch(word)
    return Unit(((f"count of {word}", 1),)) if is_noun else None
