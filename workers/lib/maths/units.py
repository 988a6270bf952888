"""Units after a number: what they measure, and their size (units.txt). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

from workers.lib.magnitudes import KINDS

LONGEST = 80  # characters
_LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
_TEN = Fraction(10)
_SMALL = {"d": -1, "c": -2, "m": -3, "µ": -6, "u": -6, "n": -9, "p": -12, "f": -15}
_LARGE = {"da": 1, "h": 2, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SI = {prefix: _TEN**power for prefix, power in (_SMALL | _LARGE).items()}
_BINARY = {prefix: _TEN**power for prefix, power in ({"K": 3} | _LARGE).items() if power > 2} | {
    f"{prefix}i": Fraction(1024) ** at for at, prefix in enumerate("KMGTPE", 1)
}
_PREFIXES = {"si": _SI, "small": {prefix: _SI[prefix] for prefix in _SMALL}, "binary": _BINARY}
_PREFIX_NAMES = {
    name: power
    for power, names in (
        (15, "peta"),
        (12, "tera тера"),
        (9, "giga гига"),
        (6, "mega мега méga"),
        (3, "kilo kiló quilo chilo кило кіло"),
        (2, "hecto hekto гекто"),
        (1, "deca deka дека"),
        (-1, "deci dezi déci деци"),
        (-2, "centi zenti senti санти"),
        (-3, "milli mili milí милли мили мілі"),
        (-6, "micro mikro микро мікро"),
        (-9, "nano нано"),
        (-12, "pico piko пико піко"),
        (-15, "femto"),
    )
    for name in names.split()
}
_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_LETTER = r"[^\W\d_]"
_NAME = rf"(?:{_LETTER}|[°$€£¢¥₹₩₽₺₴₪₦₫฿₱℃℉])"
_FACTOR = re.compile(
    rf"(?:(square|sq|cubic|cu)\.?\s+)?({_NAME}(?:{_NAME}|['’⋅.](?={_LETTER}))*)\.?"
    r"\s*(?:\^\s*\{?\s*(-?\d)\s*\}?|\s(squared|cubed)(?!\w)|(?<!\s)([23])(?!\d))?"
)
_SEPARATOR = re.compile(r"\s*(?:\\cdot(?![a-z])|\\times(?![a-z])|[·*-])?\s*")
_OVER = re.compile(r"\s*/\s*|\s+(?:per|pro|par|por|в)\s+|(?<!\w)per\s+")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SIGNS = re.compile(r"\\(mu|Omega|ohm|degree|AA)(?![A-Za-z])\s*")
_DEGREES_OF = re.compile(r"\b(?:degrees?|deg)\s+(?=celsius|fahrenheit|kelvin)", re.IGNORECASE)
_APART = re.compile(r"(?<![A-Za-z])([kMGTmn])\s+(?=Ω)")
_SIGN = {"mu": "µ", "Omega": "Ω", "ohm": "Ω", "degree": "°", "AA": "Å"}
_SAME = str.maketrans({"μ": "µ", "Ω": "Ω", "Å": "Å", "{": "{", '"': " ", "~": " "})
# Where a number may end and its unit begin.
_EDGE = re.compile(
    r"(?:(?<=[\d)}|\]])|(?<=\\pi)|(?<=\w)(?=\s))\s*"
    rf"(?=\\(?!cdot|times)[A-Za-z]|{_NAME})"
)
_COMMAND, _VARIABLES = re.compile(r"\\[A-Za-z]+"), re.compile(r"[A-Za-z]")
_ONLY_LETTERS = re.compile(r"[A-Za-z](?:[\s/*·^{}\d()-]|\\cdot|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))*")
# A noun that counts things is not a unit of measure; these change the number instead.
_NO_NOUN = re.compile(
    r".*(?:ths|rds|lves|ed|ly)|(?:quarter|half|score|time|power|factorial|root|nan)s?"
    r"|plus|minus|less|more|fewer|not|and|but"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """`measures`: sorted (dimension, power) pairs; the size in base units is `size`·π^`pi`."""

    measures: tuple[tuple[str, int], ...] = ()
    size: Fraction = Fraction(1)
    pi: int = 0

    def __mul__(self, other: Unit) -> Unit:
        powers = dict(self.measures)
        for measure, power in other.measures:
            powers[measure] = powers.get(measure, 0) + power
        measures = tuple(sorted((measure, power) for measure, power in powers.items() if power))
        return Unit(measures, self.size * other.size, self.pi + other.pi)

    def __pow__(self, power: int) -> Unit:
        measures = tuple((measure, each * power) for measure, each in self.measures)
        return Unit(measures, self.size**power, self.pi * power)

    @property
    def latex(self) -> str:
        return rf"\frac{{{self.size.numerator}}}{{{self.size.denominator}}} \cdot \pi^{{{self.pi}}}"

    @property
    def is_angle(self) -> bool:
        return self.measures == (("angle", 1),)


@cache
def _symbols() -> dict[str, Unit]:
    """Units by their symbols, with prefixes. A symbol of its own comes before one with a prefix."""
    own, prefixed = {}, {}
    for line in _LINES:
        if not line or line[0] == "#" or ": " in line:
            continue
        symbol, measures, size, *prefixes = line.split(" ")
        powers = (part.partition("^") for part in measures.split("·"))
        own[symbol] = Unit(
            tuple(sorted((name, int(power or 1)) for name, _, power in powers)),
            Fraction(size.replace("π/", "1/").replace("π", "") or 1),
            size.count("π"),
        )
        for prefix, scale in _PREFIXES[prefixes[0]].items() if prefixes else ():
            prefixed[prefix + symbol] = own[symbol] * Unit(size=scale)
    return prefixed | own


@cache
def _names() -> dict[str, Unit]:
    names = {}
    for line in _LINES:
        symbol, colon, words = line.partition(": ")
        if colon and line[0] != "#":
            unit = _product(symbol)
            names |= {word: unit for word in words.split("|") if unit}
    return names


@cache
def _in_any_case() -> dict[str, Unit | None]:
    """Symbols in any case; None for those that are different units, such as mW and MW. A large
    first letter is meant as such: Mhz.
    """
    folded: dict[str, Unit | None] = {}
    for symbol, unit in _symbols().items():
        for key in {symbol.casefold(), symbol[0] + symbol[1:].casefold()}:
            if key[0] == key[0].casefold() or symbol[0] == key[0]:
                folded[key] = unit if folded.get(key, unit) == unit else None
    return folded


def currencies() -> dict[str, str]:
    """Symbols and names of currencies, in lower case, to their codes."""
    known = {name: unit for name, unit in (_symbols() | _names()).items() if unit.size == 1}
    return {
        name.casefold(): unit.measures[0][0]
        for name, unit in known.items()
        if unit.measures[0][0].isupper() and (name.isupper() or name not in _symbols())
    }


def split_unit(text: str, *, named: bool, letters: bool = False) -> tuple[str, Unit, str] | None:
    """The number, its unit, and the unit's text: 5 cm, 20 m s^{-2}, 3 apples. Single letters such
    as in 5 m look like variables; they are units only with `letters` or if `named` as text.
    """
    for edge in _EDGE.finditer(text):
        number, tail = text[: edge.start()].strip(), text[edge.end() :].strip()
        if not named and _VARIABLES.search(_COMMAND.sub("", number)):
            return None
        is_unit = named or letters or not _ONLY_LETTERS.fullmatch(tail)
        if is_unit and (unit := unit_of(tail, named=named)):
            return number, unit, tail
    return None


def ratio(unit: str, other: str) -> Fraction | None:
    """How many of the other unit one unit is: 1000 for km and m; None if they differ in what they
    measure.
    """
    one, another = unit_of(unit), unit_of(other)
    if one is None or another is None or one.measures != another.measures or one.pi != another.pi:
        return None
    return one.size / another.size


def unit_of(text: str, *, named: bool = True) -> Unit | None:
    """The unit in a text such as cm, km/h, square meters, m s^{-2}, kWh, dollars per hour, apples;
    None if the words are not a unit. Unless `named` as text, things are only recognised in the
    plural.
    """
    if len(text) > LONGEST:
        return None
    text = _SIGNS.sub(lambda sign: _SIGN[sign[1]], text).translate(_SAME)
    text = _DEGREES_OF.sub("", _APART.sub(r"\1", text))
    text = " ".join(_FRACTION.sub(r"(\1)/(\2)", text).split())
    if " " in text and (name := _names().get(text.casefold().strip(" ."))):
        return name
    unit = Unit()
    for at, side in enumerate(_OVER.split(text)):
        side = side.strip()
        if side[:1] == "(" and side[-1:] == ")":
            side = side[1:-1].strip()
        part = Unit() if side == "1" or (at == 0 and not side) else _product(side)
        if part is None:
            return _noun(text, named) if side == text else None
        unit *= part if at == 0 else part**-1
    return unit if unit.measures else None


def _product(text: str) -> Unit | None:
    """N m, kg·m^2, kg m^2 s^{-2}, nautical miles."""
    if "/" in text:
        top, bottom = map(_product, text.split("/"))
        return top * bottom**-1 if top and bottom else None
    unit, at = Unit(), 0
    while at < len(text):
        factor = _FACTOR.match(text, at)
        known = None if factor is None else _known(factor[2])
        if factor is None or known is None:
            return None
        if factor[5] and known.measures != (("length", 1),):
            return None  # m2, but not H2
        power = int(factor[3] or factor[5] or 1)
        for word in filter(None, (factor[1], factor[4])):
            power *= _WORDS[word]
        unit *= known**power
        at = _SEPARATOR.match(text, factor.end()).end()
    return unit if text else None


def _known(word: str) -> Unit | None:
    if unit := _symbols().get(word) or (len(word) == 1 and _names().get(word.casefold())):
        return unit
    folded = word.casefold()
    names = _names()
    for name in (folded, folded.removesuffix("s"), folded.removesuffix("es")):
        if len(name) > 1 and (unit := names.get(name) or _symbols().get(name)):
            return unit
        for prefix, power in _PREFIX_NAMES.items():
            if name.startswith(prefix) and (unit := names.get(name[len(prefix) :])):
                return unit * Unit(size=_TEN**power)
    symbols = _in_any_case()
    return symbols.get(word[0] + folded[1:]) or symbols.get(folded) if len(word) > 1 else None


def _noun(text: str, named: bool) -> Unit | None:
    word = text.strip().casefold()
    is_noun = re.fullmatch(rf"{_LETTER}{{3,}}" if named else r"[a-z]{3,}s", word) and not (
        _NO_NOUN.fullmatch(word) or word in KINDS or word.removesuffix("s") in KINDS
    )
    return Unit(((f"count of {word}", 1),)) if is_noun else None
