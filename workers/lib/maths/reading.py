"""From an answer's text, LaTeX or plain, to its structure: values, sets, tuples, intervals, equations, units. Pure.

Only the leaves, single expressions, are left to the LaTeX parser, which guesses where a text is unclear (“2 3” is 5 to
it, and “x or 3” a product). Everything unclear is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate

from workers.lib.maths.emphasis import unmarked
from workers.lib.maths.numerals import Unreadable, exact, in_radians
from workers.lib.maths.units import SCALES, Unit, unit_of

MOST_PARTS, DEEPEST = 40, 12


@dataclass(frozen=True, slots=True)
class Node:
    """`kind`: value (LaTeX in `text`), words, list (no order), series (in the brackets or matrix of `text`) or relation
    (`text` is its operator, between two parts). `name`: the variable it is said of. `sides`: x = sides[0] = … = value."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()
    name: str = ""
    unit: Unit | None = None
    sides: tuple[str, ...] = ()


_FUNCTIONS = "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln log exp max min gcd lcm det"
_GREEK = "alpha beta gamma delta epsilon theta lambda mu sigma phi omega pi"
_SUPERSCRIPTS = {
    "⁰": "0",
    "¹": "1",
    "²": "2",
    "³": "3",
    "⁴": "4",
    "⁵": "5",
    "⁶": "6",
    "⁷": "7",
    "⁸": "8",
    "⁹": "9",
    "⁻": "-",
}
_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ",
     "≥": "\\ge ", "≠": "\\ne ", "±": "\\pm ", "∪": "\\cup ", "∈": "\\in ", "∅": "\\emptyset ", "°": "^\\circ ", "θ": "\\theta ",
     "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}", "\u00a0": " ", "\u2009": " ", "≈": "\\approx ", "~": " ", "\t": " ", "\n": " "}
)  # fmt: skip
_ENCLOSED = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|mathrm|mathbf|mathit|mbox|operatorname|boxed|fbox)\s*\{([^{}]*)\}"
)
_REWRITES = tuple((re.compile(pattern), by) for pattern, by in (
    (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])", " "), (r"(?<!\\)\\[,;: ]|(?<![,\\])\\!|\\q?quad(?![a-z])", " "),
    (r"(?<=\d),\\!\s*(?=\d{3})", ","), (r"\\[dtc]frac(?![a-z])", r"\\frac"), (r"\\[lr]?vert(?![a-z])", "|"), (r"\\lbrace(?![a-z])", r"\\{"), (r"\\rbrace(?![a-z])", r"\\}"),
    (r"\\(?:leq|leqslant)(?![a-z])|<=|=<", r"\\le "), (r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge "), (r"\\lt(?![a-z])", "<"),
    (r"\\gt(?![a-z])", ">"), (r"\\neq(?![a-z])|!=", r"\\ne "), (r"\\varnothing(?![a-z])|\\\{\s*\\\}", r"\\emptyset "),
    (r"\+/-|\+-", r"\\pm "), (r"\*\*", "^"), (r"\*", r" \\cdot "), (r"\\div(?![a-z])", "/"), (r"√\s*(\d+|\w)", r"\\sqrt{\1}"),
    (r"√", r"\\sqrt"), (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"), (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"\\frac\s*(\{[^{}]*\})\s*(\d)", r"\\frac\1{\2}"), (r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}"),
    (r"(?<![\\a-zA-Z])(?:infinity|inf)(?![a-zA-Z])", r"\\infty "), (r"(?<![\\a-zA-Z])sqrt(?![a-zA-Z])", r"\\sqrt"),
    (rf"(?<![\\a-zA-Z])({'|'.join((_FUNCTIONS + ' ' + _GREEK).split())})(?![a-zA-Z])", r"\\\1 "),
    (r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,6})(?![\w.])", r"\1 \\cdot 10^{\2}"), (r"\\text\s*", ""),
))  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?![\d,]| \d)")
_WHOLE_TIMES = re.compile(r"(?<![\w^.\\}])(\d+)\s*\((?=)")
_UNIT = re.compile(
    r"^(.*?[\d)}|A-Z\]])\s*(?:\"([^\"]+)\"|((?:[A-Za-z]{2,}|°)\.?(?:\s+[A-Za-z]{2,}|\s*/\s*[A-Za-z]+)*))\s*(\^\s*\{?[23]\}?)?$"
)
_CURRENCY = re.compile(r"^(-?)\s*([$€£])\s*(.+)$")
_MATRIX = re.compile(
    r"^\(?\s*\[?\s*\\begin\s*\{([pb]?matrix|array)\}\s*(?:\{[clr|]*\})?(.*)\\end\s*\{\1\}\s*\]?\s*\)?$", re.DOTALL
)
_RELATION = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|\\in(?![a-z])|=|<|>")
_SINGLE = r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\((?:[a-z](?:,\s*)?)+\))?"
_NAME = re.compile(rf"{_SINGLE}(?:\s*:\s*{_SINGLE})?|\((?:\\?[a-z]+\s*,?\s*)+\)|\|[A-Z]{{1,3}}\|")
_AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z][A-Za-z'’ -]*")
_VAGUE = re.compile(r"\\(?:approx|sim|ldots|dots|cdots|mp|bar|prime|to|mid|vec|hat|tilde)(?![a-z])|[?'`&#@;]|\.\.\.")
_ENGLISH = frozenset(["or", "and", "not", "if", "is", "no", "to", "of", "at", "by", "nan", "oo", "the", "so", "it", "be", "yes", "has", "but"])  # fmt: skip
_OPPOSITE = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


def read(text: str) -> Node:
    """The structure of an answer. Raises Unreadable."""
    text = _undelimited(re.sub(r"~(?=\s*[\d.])", "≈", text).translate(_CHARACTERS).strip())
    text = text if "\\begin" in text else text.replace("\\\\", "\\")  # escaped twice
    text = re.sub(f"[{''.join(_SUPERSCRIPTS)}]+", lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    words = _ENCLOSED.sub(r" \1 ", text)
    for _ in range(DEEPEST):
        inner = _ENCLOSED.sub(_quoted, text)
        if inner == text:
            break
        text = inner
    bare = " ".join(words.replace('"', " ").strip(" ().").split())
    if (len(bare) > 2 or bare.casefold() == "no") and _WORDS.fullmatch(bare) and not _AND.search(bare):
        return Node("words", bare.casefold())
    for pattern, by in _REWRITES:
        text = pattern.sub(by, text)
    text = _braced(_braced(text, "\\sqrt", ""), "^", "").replace('"" ', "").strip().rstrip(".").strip()
    if _balance(text) or text.count("|") % 2:
        raise Unreadable("unbalanced brackets")
    return _answer(text, 0)


def _quoted(match: re.Match) -> str:
    inner = match[1].strip()
    is_words = (
        _WORDS.fullmatch(inner) and not _AND.search(inner) and (len(inner) > 1 or not match[0].startswith("\\text"))
    )
    return (
        f' "{inner}" '
        if is_words and not match[0].startswith(("\\boxed", "\\mathbf", "\\operatorname"))
        else f" {inner} "
    )


def _undelimited(text: str) -> str:
    """Without $…$, \\(…\\), \\[…\\] and emphasis around it; a dollar sign before a number stays as $."""
    text = re.sub(r"\\[()\[\]]", " ", re.sub(r"\\\\(?=[\[(])", " ", unmarked(text)))
    text = text.replace("\\$", "＄")
    if text.count("$") % 2 and (found := re.match(r"(-?\s*)\$(?=\s*[\d.])", text)):
        text = f"{found[1]}＄{text[found.end() :]}"
    return text.replace("$", " ").replace("＄", "$").strip()


def _braced(text: str, before: str, after: str) -> str:
    """`before`(…) as `before`{…}, whatever is nested inside."""
    at = 0
    while (at := text.find(before, at)) >= 0:
        at += len(before)
        start = at + len(text[at:]) - len(text[at:].lstrip())
        if text[start : start + 1] == "(" and (end := _closing(text, start)):
            text = f"{text[:at]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
    return text


def _step(char: str) -> int:
    return (char in "([{") - (char in ")]}")


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += _step(text[at])
        if depth == 0:
            return at
    return 0


def _balance(text: str) -> bool:
    """Whether brackets are unbalanced; ( may be closed by ], as half-open intervals have it."""
    depths = list(accumulate(map(_step, text), initial=0))
    return min(depths) < 0 or depths[-1] != 0


def _split(text: str, separator: re.Pattern) -> list[str]:
    """At what is outside of all brackets."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        depth += _step(char)
        if depth == 0 and (found := separator.match(text, at)):
            parts.append(text[start:at])
            start = at = max(found.end(), at + 1)
            continue
        at += 1
    return [part.strip() for part in (*parts, text[start:])]


_COMMA = re.compile(r",\s*(?:and|or)(?![A-Za-z])|,|;|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_CUP, _RATIO = re.compile(r"\\cup(?![a-z])"), re.compile(":")


def _answer(text: str, depth: int) -> Node:
    if depth > DEEPEST:
        raise Unreadable("nested too deep")
    if found := _MATRIX.match(text):
        return _matrix(found[2], depth)
    joined = _SPACED.sub(
        lambda m: m[0].replace(" ", ""), _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text.replace("{,}", ""))
    )
    text = joined if not _THOUSANDS.search(text) or _only_numbers(text) else text
    text = re.sub(r"^either\s+", "", text)
    for separator in (_COMMA, _CUP):
        if len(parts := _split(text, separator)) > 1:
            return _list(parts, depth)
    if text.replace(" ", "") == "\\emptyset":
        return Node("list")
    parts = _split(text, _RELATION)
    if len(parts) > 1:
        return _relation(parts, _operators(text), depth)
    if len(parts := _split(text, _RATIO)) > 1:
        return Node("series", ":", _several(parts, depth))
    return _bracketed(text, depth) or _value(text)


def _only_numbers(text: str) -> bool:
    """Commas inside of brackets separate; outside, 1,234 is one number."""
    found = _THOUSANDS.search(text)
    while found:
        before = text[: found.start()]
        if sum(char in "([" for char in before) > sum(char in ")]" for char in before) or before.count(
            "\\{"
        ) > before.count("\\}"):
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


def _matrix(body: str, depth: int) -> Node:
    rows = [row.split("&") for row in body.strip().removesuffix("\\\\").split("\\\\")]
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("a matrix with rows of different lengths")
    return Node(
        "series", f"matrix {len(rows)}×{len(rows[0])}", _several([cell.strip() for row in rows for cell in row], depth)
    )


def _bracketed(text: str, depth: int) -> Node | None:
    """(a, b), [a, b), \\{a, b\\} and {a, b}; None for anything else."""
    is_set = text.startswith("\\{") and text.endswith("\\}")
    inner = text[2:-2] if is_set else text[1:-1]
    start = 1 if is_set else 0
    if not is_set and (text[:1] not in ("(", "[", "{") or text[-1:] not in (")", "]", "}")):
        return None
    if _closing(text, start) != len(text) - 1:
        return None
    parts = _split(inner, _COMMA)
    if is_set or text[0] == "{":
        return (
            Node("list", "{}", _several(parts, depth))
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
        depth += _step(char)
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
        whole = Node("relation", "=", (_value(sides[0]), found)) if found.kind == "value" and "(" not in name else None
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
    """The variable, f(x) or (x, y) that stands alone on a side; "" for an expression."""
    text = text.replace('"', "").strip()
    is_name = (
        _NAME.fullmatch(text)
        and len(re.sub(r"\\[a-z]+|_\{?\w+\}?|\W", "", text)) <= 4
        and text not in ("\\pi", "e", "i")
    )
    return re.sub(r"[\s{}]", "", text) if is_name else ""


def _interval(sides: list[str], operators: list[str]) -> Node | None:
    """3 < x, x ≥ 3 and -1 < x ≤ 1 as (3, ∞), [3, ∞) and (-1, 1]: one variable alone, numbers around it."""
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


def _value(text: str) -> Node:
    """One expression, perhaps with a unit, ± or a per cent sign. Raises Unreadable."""
    text = text.strip()
    if (quoted := re.fullmatch(r'\(?\s*"([^"]*)"\s*\)?', text)) and len(quoted[1]) > 1:
        return Node("words", " ".join(quoted[1].casefold().split()))
    text, unit = _unit(in_radians(text))
    text = text.replace('"', " ")
    if "\\pm" in text:
        if text.count("\\pm") > 1 or unit:
            raise Unreadable("more than one ±")
        return Node("list", parts=tuple(Node("value", expression(text.replace("\\pm", sign))) for sign in "+-"))
    return Node("value", expression(text), unit=unit)


def _unit(text: str) -> tuple[str, Unit | None]:
    for word, power in SCALES.items():
        text = re.sub(rf'(?<=\d)\s*"?\s*{word}\s*"?(?=\s|$)', rf" \\cdot 10^{{{power}}} ", text).strip()
    text = re.sub(r'(?:\\%|%|"?\b(?:percent(?:age)?|pct)\b"?)\s*$', r" \\cdot \\frac{1}{100}", text)
    if found := _CURRENCY.match(text):
        return found[1] + found[3], unit_of(found[2])
    if found := re.match(r'^(.*\S)\s*\^\s*\{?\s*\\circ\s*\}?\s*"?([CF]?)"?$', text):
        return found[1], unit_of({"C": "celsius", "F": "fahrenheit"}.get(found[2], "deg"))
    found = _UNIT.match(text)
    if found is None:
        return text, None
    words = found[2] or found[3]
    unit = unit_of(words + (found[4] or ""), named=bool(found[2]))
    if unit is None and (found[2] or max(map(len, words.split())) > 3):
        raise Unreadable(f"“{words}” is not a unit")
    return (found[1], unit) if unit else (text, None)


def expression(text: str) -> str:
    """LaTeX of one expression that the parser reads in one way only: decimals as fractions, products written out."""
    if not text.strip() or _VAGUE.search(text) or "," in text:
        raise Unreadable(f"not one expression: {text[:40]!r}")
    text = exact(text)
    if "\\overline" in text or "\\dot" in text or "\\begin" in text:
        raise Unreadable("not one expression")
    if re.search(r"(?<![\d_^])\d+\s+\d|\d\s*\.|\.\s*\d|_\d\d", text):
        raise Unreadable("numbers side by side")
    letters = re.sub(r"\\[A-Za-z]+|_\{[^{}]*\}", " ", text)
    if any(len(word) > 3 or word in _ENGLISH or word == "NaN" for word in re.findall(r"[A-Za-z]+", letters)):
        raise Unreadable(f"words: {text[:40]!r}")
    return " ".join(_WHOLE_TIMES.sub(r"\1 \\cdot (", text).split())
