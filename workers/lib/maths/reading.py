"""Parses an answer, LaTeX or plain text, into values, sets, tuples, intervals, equations and units.
Pure.

Only the leaves, single expressions, are left to the LaTeX parser, which guesses if a text is
ambiguous (it reads “2 3” as 5, and “x or 3” as a product). Anything ambiguous is rejected here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from workers.lib.magnitudes import KINDS, after_numbers
from workers.lib.maths.notation import (
    AND,
    WORDS,
    closing,
    is_unbalanced,
    rewritten,
    split,
    step,
    undecorated,
    unwrapped,
)
from workers.lib.maths.numerals import Unreadable, exact, in_radians
from workers.lib.maths.units import Unit, currencies, split_unit, unit_of

MOST_PARTS, DEEPEST = 40, 12


@dataclass(frozen=True, slots=True)
class Node:
    """`kind`: value (LaTeX in `text`), words, list (unordered), series (in the brackets or matrix
    of `text`) or relation (with the operator `text` between two parts). `name`: the variable that
    it is the value of. `sides`: x = sides[0] = … = value. `letters`: the text if the letters of
    the unit are variables.
    """

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()
    name: str = ""
    unit: Unit | None = None
    sides: tuple[str, ...] = ()
    letters: str = ""


_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]| \d)")
_WHOLE_TIMES = re.compile(r"(?<![\w^.\\}])(\d+)\s*\((?=)")
_MAGNITUDE = re.compile(rf"(?<=[\d}}])\s*({after_numbers()})\.?\s*", re.IGNORECASE)
_SHARE = re.compile(r"(?<=[\d)}])\s*(?:\\?(%)|(‰))\s*$")
_DEGREES = re.compile(r"(.*\S)\s*\^\s*\{?\s*\\circ\s*\}?\s*([CF]?)")
_APOSTROPHE = re.compile(r"(?<=\d)['’](?=\d{3}(?!\d))")
_DECIMAL_IN_BRACES = re.compile(r"(?<=\d)\{,\}(?=(?:\d{1,2}|\d{4,})(?!\d))")
_GROUPS = "[.\u00a0\u202f ]"
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(?:(\d{1,3}(?:[.\u00a0\u202f ]\d{3})+),(\d+)|(\d+),(\d{1,2}|\d{4,}))(?![\d,])"
)
_CURRENCY = re.compile(
    r"(-?)\s*({})\s*(-?[\d.].*)".format(
        "|".join(map(re.escape, sorted(currencies(), key=len, reverse=True)))
    ),
    re.IGNORECASE,
)
_MATRIX = re.compile(
    r"^\(?\s*\[?\s*\\begin\s*\{([pb]?matrix|array)\}\s*(?:\{[clr|]*\})?(.*)\\end\s*\{\1\}\s*\]?\s*\)?$",
    re.DOTALL,
)
_RELATION = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|\\in(?![a-z])|=|<|>")
_SINGLE = r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\((?:[a-z](?:,\s*)?)+\))?"
_NAME = re.compile(rf"{_SINGLE}(?:\s*:\s*{_SINGLE})?|\((?:\\?[a-z]+\s*,?\s*)+\)|\|[A-Z]{{1,3}}\|")
_VAGUE = re.compile(
    r"\\(?:approx|sim|ldots|dots|cdots|mp|bar|prime|to|mid|vec|hat|tilde)(?![a-z])|[?'`&#@;]|\.\.\."
)
_ENGLISH = frozenset(
    [
        "or",
        "and",
        "not",
        "if",
        "is",
        "no",
        "to",
        "of",
        "at",
        "by",
        "nan",
        "oo",
        "the",
        "so",
        "it",
        "be",
        "yes",
        "has",
        "but",
    ]
)
_DIFFERENCE = re.compile(r"[A-Za-z]{1,2}(?:\s*-\s*[A-Za-z]{1,2})+")
_NOTHING = frozenset(
    (
        "no solution",
        "no solutions",
        "no real solution",
        "no real solutions",
        "empty set",
        "the empty set",
    )
)
_REALS = frozenset(("all real numbers", "all reals", "all real", "the real numbers"))
_REAL = r"(?:\\in\s*)?\\mathbb\s*\{?\s*R\s*\}?"
_BUILT = re.compile(
    rf"\\\{{\s*(\\?[A-Za-z]+)\s*(?:{_REAL})?\s*(?:\\mid(?![a-z])|\||:)\s*(.+?)\s*\\\}}"
)
_BUT = re.compile(
    rf"{_REAL}\s*(?:\\setminus(?![a-z])|\\backslash(?![a-z])|-)\s*\\\{{([^{{}},;]+)\\\}}"
)
_ABSOLUTE = re.compile(r"\|\s*(\\?[A-Za-z]+)\s*\|")
_CASES = re.compile(
    r"(?:([^=]+)=)?\s*(?:\\\{)?\s*\\begin\s*\{cases\}(.*)\\end\s*\{cases\}", re.DOTALL
)
_WHEN = re.compile(r'^[\s,]*"?\s*(?:if|for|when|where)(?![A-Za-z])\s*"?|[\s,.]+$')
_MODULO = re.compile(
    r"(?:(\\?[A-Za-z]+)\s*\\equiv(?![a-z])\s*)?(.+?)\s*(?:\\pmod\s*|\\mod\s*|\(\s*(?:\\?b?mod|\"mod\")\s*)(\{[^{}]*\}|\w+)\s*\)?"
)
_OPPOSITE = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


def read(text: str) -> Node:
    """The structure of an answer. Raises Unreadable."""
    if (decimal := with_decimal_comma(text)) != text and re.search(r"(?:%|\D\D)\s*$", text):
        with suppress(Unreadable):
            quantity = _read(decimal)
            if quantity.unit or text.rstrip().endswith("%"):
                return quantity
    return _read(text)


def _read(text: str) -> Node:
    text = _APOSTROPHE.sub("", _DECIMAL_IN_BRACES.sub(".", undecorated(text)))
    bare = " ".join(unwrapped(text).replace('"', " ").strip(" ().").split())
    if (
        (len(bare) > 2 or bare.casefold() == "no")
        and WORDS.fullmatch(bare)
        and not AND.search(bare)
        and not _DIFFERENCE.fullmatch(bare)
    ):
        if bare.casefold() in _NOTHING:
            return Node("list")
        return _everything() if bare.casefold() in _REALS else Node("words", bare.casefold())
    text = rewritten(text)
    if found := _BUILT.fullmatch(text):
        text = found[2]
    if is_unbalanced(text) or text.count("|") % 2:
        raise Unreadable("unbalanced brackets")
    return _answer(text, 0)


_COMMA = re.compile(
    r",\s*(?:and|or)(?![A-Za-z])|,|;|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", re.IGNORECASE
)
_CUP, _RATIO = re.compile(r"\\cup(?![a-z])"), re.compile(":")


def _answer(text: str, depth: int) -> Node:
    if depth > DEEPEST:
        raise Unreadable("nested too deep")
    if found := _MATRIX.match(text):
        return _matrix(found[2], depth)
    if found := _CASES.fullmatch(text):
        return _cases(found[2], depth)
    if found := _BUT.fullmatch(text):
        return _all_but(_value(found[1]))
    if re.fullmatch(_REAL, text):
        return _everything()
    if found := _MODULO.fullmatch(text):
        return Node("series", "mod", (_value(found[2]), _value(found[3].strip("{}"))))
    joined = _SPACED.sub(
        lambda m: m[0].replace(" ", ""),
        _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text.replace("{,}", "")),
    )
    text = joined if not _THOUSANDS.search(text) or _only_numbers(text) else text
    text = re.sub(r"^either\s+", "", text)
    if compound := _compound(text):
        return compound
    for separator in (_COMMA, _CUP):
        if len(parts := split(text, separator)) > 1:
            both = (
                separator is _COMMA
                and len(parts) == 2
                and re.search(r"(?<![A-Za-z\\])and(?![A-Za-z])", text, re.IGNORECASE)
            )
            return (
                _within_both(_several(parts, depth))
                if both
                else replace(_list(parts, depth), text="∪" * (separator is _CUP))
            )
    if text.replace(" ", "") == "\\emptyset":
        return Node("list")
    parts = split(text, _RELATION)
    if len(parts) > 1:
        return _relation(parts, _operators(text), depth)
    if len(parts := split(text, _RATIO)) > 1:
        return Node("series", ":", _several(parts, depth))
    return _bracketed(text, depth) or _value(text)


def _only_numbers(text: str) -> bool:
    """Commas inside of brackets are separators; outside, 1,234 is one number."""
    found = _THOUSANDS.search(text)
    while found:
        before = text[: found.start()]
        if sum(char in "([" for char in before) > sum(
            char in ")]" for char in before
        ) or before.count("\\{") > before.count("\\}"):
            return False
        if before.rstrip().endswith("{") and "," in text[: found.end()]:
            return False
        found = _THOUSANDS.search(text, found.end())
    return True


def _several(texts: list[str], depth: int) -> tuple[Node, ...]:
    if len(texts) > MOST_PARTS:
        raise Unreadable("too many parts")
    return tuple(_answer(text, depth + 1) for text in texts)


def _list(texts: list[str], depth: int) -> Node:
    return Node("list", parts=tuple(dict.fromkeys(_several(texts, depth))))


def _within_both(parts: tuple[Node, ...]) -> Node:
    """x > 1 and x < 3 combined to 1 < x < 3; anything but two inequalities of one variable stays a
    list.
    """
    one, other = parts
    bounds = [
        node
        for node in parts
        if node.kind == "series" and node.name and node.text in ("()", "[)", "(]", "[]")
    ]
    if len(bounds) < 2 or one.name != other.name or "," in one.name:
        return Node("list", parts=tuple(dict.fromkeys(parts)))
    low, high = (one, other) if other.parts[0].text == "-\\infty" else (other, one)
    if low.parts[1].text != "\\infty" or high.parts[0].text != "-\\infty":
        raise Unreadable("two inequalities joined by “and” that are no interval")
    return replace(low, text=low.text[0] + high.text[1], parts=(low.parts[0], high.parts[1]))


def _everything() -> Node:
    return Node("series", "()", (Node("value", "-\\infty"), Node("value", "\\infty")))


def _all_but(value: Node) -> Node:
    """All real numbers except one."""
    low, high = _everything().parts
    return Node(
        "list", "∪", (Node("series", "()", (low, value)), Node("series", "()", (value, high)))
    )


def _cases(body: str, depth: int) -> Node:
    """A function defined by cases: the values and their conditions, in any order."""
    parts = []
    for row in filter(str.strip, body.split("\\\\")):
        value, comma, when = row.partition("&") if "&" in row else row.rpartition(",")
        if not comma:
            raise Unreadable("a case without a condition")
        when = _WHEN.sub("", _WHEN.sub("", when.strip())).strip().strip('"').strip()
        condition = (
            Node("words", "otherwise")
            if when in ("otherwise", "else")
            else _answer(when, depth + 1)
        )
        parts.append(
            Node("series", "case", (_answer(value.strip().rstrip(","), depth + 1), condition))
        )
    if not 0 < len(parts) <= MOST_PARTS:
        raise Unreadable("too many cases or none")
    return Node("list", "cases", tuple(parts))


def _matrix(body: str, depth: int) -> Node:
    rows = [row.split("&") for row in body.strip().removesuffix("\\\\").split("\\\\")]
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("a matrix with rows of different lengths")
    return Node(
        "series",
        f"matrix {len(rows)}×{len(rows[0])}",
        _several([cell.strip() for row in rows for cell in row], depth),
    )


def _bracketed(text: str, depth: int) -> Node | None:
    """(a, b), [a, b), \\{a, b\\} and {a, b}; None for anything else."""
    is_set = text.startswith("\\{") and text.endswith("\\}")
    inner = text[2:-2] if is_set else text[1:-1]
    start = 1 if is_set else 0
    if not is_set and (text[:1] not in ("(", "[", "{") or text[-1:] not in (")", "]", "}")):
        return None
    if closing(text, start) != len(text) - 1:
        return None
    parts = split(inner, _COMMA)
    if is_set or text[0] == "{":
        return (
            Node("list", "{}", tuple(dict.fromkeys(_several(parts, depth))))
            if is_set or len(parts) > 1
            else _answer(inner.strip(), depth + 1)
        )
    if len(parts) > 1:
        return Node("series", text[0] + text[-1], _several(parts, depth))
    return _answer(inner.strip(), depth + 1) if text[0] + text[-1] == "()" else None


# Relations


def _operators(text: str) -> list[str]:
    found, depth = [], 0
    for at, char in enumerate(text):
        depth += step(char)
        if depth == 0 and (match := _RELATION.match(text, at)):
            found.append(match[0])
    return found


def _relation(sides: list[str], operators: list[str], depth: int) -> Node:
    if not all(sides):
        raise Unreadable("a relation with one side")
    if operators == ["\\in"]:
        return replace(_answer(sides[1], depth + 1), name=_name(sides[0]))
    if set(operators) == {"="}:
        return _equation(sides, depth)
    if (
        len(sides) == 2
        and operators == ["\\ne"]
        and _name(sides[0])
        and not re.search("[A-Za-z]", sides[1].replace("\\pi", ""))
    ):
        return _all_but(_value(sides[1]))
    if (
        len(sides) == 2
        and (found := _ABSOLUTE.fullmatch(sides[0]))
        and not re.search("[A-Za-z|-]", sides[1].replace("\\pi", ""))
    ):
        outside = operators[0] in (">", "\\ge")
        if outside or operators[0] in ("<", "\\le"):
            low = _interval([found[1], f"-({sides[1]})"], [_OPPOSITE[operators[0]]])
            high = _interval([found[1], sides[1]], operators)
            pair = tuple(node for node in (low, high) if node is not None)
            return Node("list", "∪", pair) if outside else _within_both(pair)
    if interval := _interval(sides, operators):
        return interval
    if len(sides) > 2:
        return Node("series", " ".join(operators), tuple(_value(side) for side in sides))
    (one, other), operator = (_value(side) for side in sides), operators[0]
    if operator in (">", "\\ge"):
        one, other, operator = other, one, _OPPOSITE[operator]
    return Node("relation", operator, (one, other))


def _equation(sides: list[str], depth: int) -> Node:
    if len(sides) == 2 and not _name(sides[0]) and _name(sides[1]):
        sides = sides[::-1]
    if name := _name(sides[0]):
        found = _answer(sides[-1], depth + 1)
        whole = (
            Node("relation", "=", (_value(sides[0]), found))
            if found.kind == "value" and "(" not in name
            else None
        )
        return replace(
            found,
            name=name,
            sides=tuple(_value(side).text for side in sides[1:-1]),
            parts=found.parts or (whole,) * bool(whole),
        )
    values = [_value(side) for side in sides]
    if len(values) > 2:
        return replace(values[-1], sides=tuple(value.text for value in values[:-1]))
    return Node("relation", "=", tuple(values))


def _name(text: str) -> str:
    """The variable, f(x) or (x, y) that is alone on a side; "" for an expression."""
    text = text.replace('"', "").strip()
    is_name = (
        _NAME.fullmatch(text)
        and len(re.sub(r"\\[a-z]+|_\{?\w+\}?|\W", "", text)) <= 4
        and text not in ("\\pi", "e", "i")
    )
    return re.sub(r"[\s{}]", "", text) if is_name else ""


def _interval(sides: list[str], operators: list[str]) -> Node | None:
    """3 < x, x ≥ 3 and -1 < x ≤ 1 as (3, ∞), [3, ∞) and (-1, 1]: a single variable with numbers
    around it.
    """
    if not set(operators) <= {"<", "\\le"}:
        sides, operators = sides[::-1], [_OPPOSITE.get(sign, "") for sign in reversed(operators)]
    if not set(operators) <= {"<", "\\le"} or len(sides) > 3:
        return None
    at = 1 if len(sides) == 3 else next((n for n in (0, 1) if _name(sides[n])), -1)
    bounds = [side for n, side in enumerate(sides) if n != at]
    if (
        at < 0
        or not _name(sides[at])
        or any(re.search(r"(?<![\\a-zA-Z])[a-df-zA-Z](?![a-zA-Z])", side) for side in bounds)
    ):
        return None
    low = (operators[0], sides[0]) if at == 1 else ("<", "-\\infty")
    high = (operators[-1], sides[-1]) if at + 1 < len(sides) else ("<", "\\infty")
    brackets = ("(" if low[0] == "<" else "[") + (")" if high[0] == "<" else "]")
    return Node("series", brackets, (_value(low[1]), _value(high[1])), name=_name(sides[at]))


# Values


_PART = re.compile(
    r'\s*(\d{1,12}(?:\.\d{1,12})?)\s*"?\s*([^\W\d_]{1,16})\.?\s*"?\s*(?:,|"?(?:and|und|et|y|e|и)\b"?)?'
)


def _compound(text: str) -> Node | None:
    """1 h 30 min, 5 feet and 3 inches: amounts of one measure, each in a smaller unit."""
    parts, at = [], 0
    while at < len(text) and len(parts) < 5 and (part := _PART.match(text, at)):
        parts.append((Fraction(part[1]), part[2]))
        at = part.end()
    units = [unit_of(word) for _, word in parts]
    if at < len(text) or len(parts) < 2 or None in units:
        return None
    hour = unit_of("h")
    units = [
        unit_of("min")
        if word == "m" and hour.measures in (each.measures for each in units)
        else unit
        for (_, word), unit in zip(parts, units, strict=True)
    ]
    if len({unit.measures for unit in units}) > 1 or any(
        larger.size <= smaller.size for larger, smaller in pairwise(units)
    ):
        return None
    total = sum(number * unit.size for (number, _), unit in zip(parts, units, strict=True))
    return Node(
        "value",
        rf"\frac{{{total.numerator}}}{{{total.denominator}}}",
        unit=Unit(units[0].measures, pi=units[0].pi),
    )


def with_decimal_comma(text: str) -> str:
    """The text with a point if its only comma may be a decimal one: 3,5 and 1.234,56, not 1,234."""
    if text.count(",") != 1:
        return text
    return _DECIMAL_COMMA.sub(
        lambda found: (
            f"{re.sub(_GROUPS, '', found[1])}.{found[2]}" if found[1] else f"{found[3]}.{found[4]}"
        ),
        text.replace("{,}", ","),
    )


def _value(text: str) -> Node:
    """One expression, optionally with a unit, ± or a percent sign. Raises Unreadable."""
    text = text.strip()
    if (quoted := re.fullmatch(r'\(?\s*"([^"]*)"\s*\)?', text)) and len(quoted[1]) > 1:
        return Node("words", " ".join(quoted[1].casefold().split()))
    text, unit, letters = _unit(in_radians(text))
    if text.count("\\mp") == 1 and "\\pm" not in text:
        text = text.replace("\\mp", "\\pm")
    if "\\pm" in text:
        if text.count("\\pm") > 1 or unit:
            raise Unreadable("more than one ±")
        return Node(
            "list",
            parts=tuple(Node("value", expression(text.replace("\\pm", sign))) for sign in "+-"),
        )
    return Node("value", expression(text), unit=unit, letters=letters)


def _unit(text: str) -> tuple[str, Unit | None, str]:
    """The number, its unit, and the whole as it reads if the unit's letters are variables: 3cd."""
    named, text = '"' in text, " ".join(text.replace('"', " ").split())
    text = _SHARE.sub(lambda found: _scaled(found[1] or found[2]), text)
    text = _MAGNITUDE.sub(lambda found: _scaled(KINDS[found[1].casefold()]), text).strip()
    found = _CURRENCY.fullmatch(text)
    if found and not re.fullmatch(r"[a-z]{2}", found[2]):  # rs5 is a product, Rs 5 are rupees
        number, unit, _ = _unit(found[3])
        own = unit_of(found[2])
        if unit and unit != own:
            raise Unreadable("two currencies")
        return found[1] + number, own, ""
    if found := _DEGREES.fullmatch(text):
        return found[1], unit_of({"C": "celsius", "F": "fahrenheit"}.get(found[2], "deg")), ""
    if found := split_unit(text, named=named):
        number, unit, symbols = found
        is_word = named or re.search(r"\w{4}|[^\W\d_a-zA-Z]", symbols)
        return number, unit, "" if is_word else text
    if named and re.search(r"[A-Za-z]{2,}$", text):
        raise Unreadable(f"“{text[-20:]}” does not end in a unit")
    return text, None, ""


def _scaled(kind: str) -> str:
    if kind == "?":
        raise Unreadable("a word for different numbers")
    if kind[0] == "×":
        return rf" \cdot {{{kind[1:]}}}^{{1}} "
    power = {"%": "", "‰": "-3"}.get(kind, kind)
    return rf" \cdot 10^{{{power}}} " if power else r" \cdot \frac{1}{100} "


def expression(text: str) -> str:
    """Unambiguous LaTeX of one expression: decimals as fractions, products written out."""
    if not text.strip() or _VAGUE.search(text) or "," in text:
        raise Unreadable(f"not one expression: {text[:40]!r}")
    text = exact(text)
    if "\\overline" in text or "\\dot" in text or "\\begin" in text:
        raise Unreadable("not one expression")
    if re.search(r"(?<![\d_^])\d+\s+\d|\d\s*\.|\.\s*\d|_\d\d", text):
        raise Unreadable("numbers side by side")
    letters = re.sub(r"\\[A-Za-z]+|_\{[^{}]*\}", " ", text)
    if any(
        len(word) > 3 or word in _ENGLISH or word == "NaN"
        for word in re.findall(r"[A-Za-z]+", letters)
    ):
        raise Unreadable(f"words: {text[:40]!r}")
    return " ".join(_WHOLE_TIMES.sub(r"\1 \\cdot (", text).split())
