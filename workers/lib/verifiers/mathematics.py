"""Whether two expressions are the same: LaTeX or plain, by value at many points. Light; mpmath is loaded on first use.

Untrusted text is never evaluated: a small grammar of our own makes a tree, and the tree is computed with 50 digits at
fixed pseudo-random points. Two expressions that agree at all points are equal with near certainty (Schwartz 1980,
Zippel 1979 for polynomials), and the time is bounded, which it is not for symbolic simplification.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from workers.lib.checks import plain
from workers.lib.verifiers.answers import Answer, AnswerOptions
from workers.lib.verifiers.base import options
from workers.lib.verifiers.types import Clients

LONGEST, MOST_TOKENS, DEEPEST, MOST_PARTS = 600, 250, 40, 30
DIGITS, POINTS, NEEDED = 50, 8, 4
_TOKEN = re.compile(
    r"\s*(?:(\d+\.?\d*(?:[eE][-+]?\d{1,3})?|\.\d+)|([A-Za-z]+(?:_[A-Za-z0-9])?)|(\*\*|[-+*/^(){}\[\]!|=]))"
)
FUNCTIONS = {
    "sqrt", "cbrt", "exp", "log", "ln", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "arcsin",
    "arccos", "arctan", "sinh", "cosh", "tanh", "abs", "factorial",
}  # fmt: skip
CONSTANTS = ("pi", "e", "i")
_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle|,|;|!|:|quad|qquad)(?![a-z])"), " "),
    (re.compile(r"\\(?:text|mathrm|mbox|operatorname|mathbf)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"((\1)/(\2))"),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|°"), "*pi/180"),
    (re.compile(r"\\(?:cdot|times|ast)(?![a-z])|×|·"), "*"),
    (re.compile(r"\\div(?![a-z])|÷"), "/"),
    (re.compile(r"\\%|%"), "/100"),
    (re.compile(r"\\?\$|\\\\|~"), " "),
    (re.compile(r"\\([{}])"), r"\1"),
    (re.compile(r"π"), " pi "),
    (re.compile(r"√"), " sqrt "),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))"), ""),
)
_CALL = re.compile(r"\\([A-Za-z]+)")
_SPACE = re.compile(r"\s+")


class Unreadable(Exception):
    """The text is no expression of the grammar, or too large a one."""


Tree = tuple  # ("number", text) | ("name", text) | (operator or function, tree, …)


# Reading


def cleaned(text: str) -> str:
    """LaTeX in the plain form of the grammar; \\frac and \\sqrt stay, as names."""
    if len(text) > LONGEST:
        raise Unreadable("too long")
    text = plain(text)
    for pattern, by in _LATEX:
        text = pattern.sub(by, text)
    return _SPACE.sub(" ", _CALL.sub(r" \1 ", text)).strip()


def tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(found) >= MOST_TOKENS:
            raise Unreadable(text[at : at + 20])
        name = match[2]
        # letters that are no known name are variables side by side: xy is x·y
        known = name is None or name in FUNCTIONS or name in CONSTANTS or name in ("frac", "infty") or "_" in name
        found += [match[0].strip()] if known else list(name)
        at = match.end()
    return found


class Parser:
    """Recursive descent. sum := term (± term)*; term := factor ([*/] or nothing, factor)*; factor := base (^ factor)?"""

    def __init__(self, found: list[str]) -> None:
        self.tokens, self.at, self.depth, self.bars = found, 0, 0, 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise Unreadable(f"expected {wanted or 'more'}")
        self.at += 1
        return token

    def whole(self) -> Tree:
        tree = self.sum()
        if self.peek():
            raise Unreadable(self.peek())
        return tree

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise Unreadable("too deep")
        tree = self.term()
        while self.peek() in ("+", "-"):
            tree = (self.take(), tree, self.term())
        self.depth -= 1
        return tree

    def term(self) -> Tree:
        tree = self.signed()
        while True:
            if self.peek() in ("*", "/"):
                tree = (self.take(), tree, self.signed())
            elif self.begins():
                tree = ("*", tree, self.power())
            else:
                return tree

    def begins(self) -> bool:
        token = self.peek()
        return bool(token) and (
            token[0].isalnum() or token[0] == "." or token in "({" or (token == "|" and not self.bars)
        )

    def signed(self) -> Tree:
        sign = False
        while self.peek() in ("+", "-"):
            sign ^= self.take() == "-"
        tree = self.power()
        return ("negative", tree) if sign else tree

    def power(self) -> Tree:
        tree = self.base()
        while self.peek() == "!":
            tree = (self.take() and "factorial", tree)
        if self.peek() in ("^", "**"):
            self.take()
            self.depth += 1
            if self.depth > DEEPEST:
                raise Unreadable("too deep")
            tree = ("^", tree, self.signed())
            self.depth -= 1
        return tree

    def base(self) -> Tree:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return ("number", token)
        if token in ("(", "{", "["):
            tree = self.sum()
            self.take({"(": ")", "{": "}", "[": "]"}[token])
            return tree
        if token == "|":
            return self.absolute()
        if token == "frac":
            return ("/", self.group(), self.group())
        if token in FUNCTIONS:
            return self.function(token)
        if token[0].isalpha():
            return ("name", token)
        raise Unreadable(token)

    def absolute(self) -> Tree:
        self.bars += 1
        tree = self.sum()
        self.bars -= 1
        self.take("|")
        return ("abs", tree)

    def group(self) -> Tree:
        self.take("{")
        tree = self.sum()
        self.take("}")
        return tree

    def function(self, name: str) -> Tree:
        """f(x), f x, f^2 x, \\sqrt[n]{x}."""
        if name == "sqrt" and self.peek() == "[":
            order = self.base()
            return ("^", self.group(), ("/", ("number", "1"), order))
        exponent = None
        if self.peek() in ("^", "**"):
            self.take()
            exponent = self.base()
        tree = (name.replace("arc", "a"), self.base() if self.peek() in ("(", "{", "|") else self.power())
        return ("^", tree, exponent) if exponent else tree


def parsed(text: str) -> Tree:
    """Raises Unreadable."""
    try:
        return Parser(tokens(text)).whole()
    except RecursionError as error:
        raise Unreadable("too deep") from error


# Computing


class Undefined(Exception):
    """No value here: a pole, 0/0, or numbers beyond all measure."""


@lru_cache(maxsize=1)
def _context() -> Any:
    from mpmath import MPContext

    context = MPContext()  # one of our own: mpmath's shared one is global to the process
    context.dps = DIGITS
    return context


def value_of(tree: Tree, names: dict[str, Any], m: Any) -> Any:
    """The tree's value, real or complex. Raises Undefined."""
    kind = tree[0]
    if kind == "number":
        return m.mpf(tree[1])
    if kind == "name":
        return {"pi": m.pi, "e": m.e, "i": m.j}[tree[1]] * 1 if tree[1] in CONSTANTS else names[tree[1]]
    parts = [value_of(part, names, m) for part in tree[1:]]
    try:
        value = _compute(kind, parts, m)
    except (ZeroDivisionError, ValueError, OverflowError, TypeError) as error:
        raise Undefined(kind) from error
    if not m.isfinite(value) or m.mag(value) > 10_000_000:
        raise Undefined(kind)
    return value


def _compute(kind: str, parts: list, m: Any) -> Any:
    one = parts[0]
    if kind in "+-*/":
        other = parts[1]
        return {"+": m.fadd, "-": m.fsub, "*": m.fmul, "/": m.fdiv}[kind](one, other)
    if kind == "negative":
        return -one
    if kind == "^":
        return _power(one, parts[1], m)
    if kind == "factorial":
        _within(one, 3000, m)
        return m.factorial(one)
    _within(one, 1e6 if kind not in ("sqrt", "cbrt", "log", "ln", "abs") else None, m)
    return _FUNCTIONS[kind](m)(one)


def _within(value: Any, most: float | None, m: Any) -> None:
    """Beyond this, sine and exponential would need precision without end."""
    if most is not None and abs(value) > most:
        raise Undefined("too large")


def _power(one: Any, other: Any, m: Any) -> Any:
    if one == 0:
        if m.im(other) != 0 or m.re(other) <= 0:
            raise Undefined("0^0")
        return m.mpf(0)
    _within(other * m.log(abs(one)) if abs(one) != 1 else other, 1e6, m)
    return m.power(one, other)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": lambda m: abs,
    "log": lambda m: m.log,
    "cbrt": lambda m: lambda x: m.sign(x) * m.cbrt(abs(x)) if m.im(x) == 0 else m.cbrt(x),
} | {
    name: (lambda m, name=name: getattr(m, name))
    for name in ("sqrt", "exp", "ln", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh")
}  # fmt: skip


def variables(tree: Tree) -> set[str]:
    if tree[0] == "name":
        return set() if tree[1] in CONSTANTS else {tree[1]}
    return set() if tree[0] == "number" else set().union(*(variables(part) for part in tree[1:]))


def equal(one: Tree, other: Tree, symbols: str = "real") -> bool:
    """Whether both have the same values at points of the real (or positive) numbers where both have one."""
    m, chance = _context(), random.Random(20)
    names = sorted(variables(one) | variables(other))
    agreed = 0
    for _ in range(POINTS if names else 1):
        low = 0.1 if symbols == "positive" else -4.0
        point = {name: m.mpf(repr(chance.uniform(low, 4.0))) for name in names}
        found = [_value(tree, point, m) for tree in (one, other)]
        if (found[0] is None) != (found[1] is None):
            return False
        if found[0] is not None:
            if not _close(found[0], found[1], m):
                return False
            agreed += 1
    return agreed >= (NEEDED if names else 1)


def _value(tree: Tree, point: dict[str, Any], m: Any) -> Any:
    try:
        return value_of(tree, point, m)
    except Undefined:
        return None


def _close(one: Any, other: Any, m: Any) -> bool:
    return abs(one - other) <= m.mpf(10) ** -(DIGITS - 20) * max(1, abs(one), abs(other))


# Answers of several parts


def parts_of(text: str) -> tuple[str, list[str]]:
    """The brackets around a list of parts, and the parts: “(1, 2)” is ("()", ["1", "2"]); one part has no brackets."""
    text = text.removeprefix("{" if text.startswith("{{") else "")
    cut = _cut(text)
    if len(cut) > 1:
        return "", cut
    if len(text) > 1 and text[0] in "([{" and text[-1] in ")]}" and len(inner := _cut(text[1:-1])) > 1:
        return text[0] + text[-1], inner
    return "", [text]


def _cut(text: str) -> list[str]:
    """At the commas outside of all brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char in ",;" and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def without_name(text: str) -> str:
    """“x = 5” is 5."""
    name, sign, rest = text.partition("=")
    return rest.strip() if sign and re.fullmatch(r"\s*[A-Za-z](?:_\w)?(?:\([a-z]\))?\s*", name) else text


def same_answer(given: str, wanted: str, symbols: str = "real") -> bool:
    """Whether two answers are the same value, equation, tuple, interval, or (in braces) set."""
    try:
        given, wanted = without_name(cleaned(given)), without_name(cleaned(wanted))
    except Unreadable:
        return False
    if given and _SPACE.sub("", given) == _SPACE.sub("", wanted):
        return True
    (around, mine), (brackets, theirs) = parts_of(given), parts_of(wanted)
    if around != brackets or len(mine) != len(theirs) or len(mine) > MOST_PARTS:
        return False
    if brackets not in ("", "{}"):
        return all(_same(a, b, symbols) for a, b in zip(mine, theirs, strict=True))
    left = list(theirs)
    for item in mine:
        match = next((other for other in left if _same(item, other, symbols)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same(given: str, wanted: str, symbols: str) -> bool:
    if _SPACE.sub("", given) == _SPACE.sub("", wanted) != "":
        return True
    sides = [text.split("=") for text in (given, wanted)]
    if len(sides[0]) != len(sides[1]) or len(sides[0]) > 2:
        return False
    try:
        trees = [parsed(side[0]) if len(side) == 1 else _equation(side) for side in sides]
    except Unreadable:
        return False
    return equal(*trees, symbols)


def _equation(sides: list[str]) -> Tree:
    return ("-", parsed(sides[0]), parsed(sides[1]))


class MathOptions(AnswerOptions):
    symbols: Literal["real", "positive"] = "real"


class Mathematics(Answer):
    """The same value as one of the right answers."""

    def __init__(self, chosen: MathOptions, path: str) -> None:
        super().__init__(chosen, path)
        self.symbols = chosen.symbols

    def same(self, found: str, wanted: Any) -> bool:
        return same_answer(found, str(wanted), self.symbols)


def from_spec(spec: dict, clients: Clients, path: str) -> Mathematics:
    return Mathematics(options(spec, path, MathOptions), path)
