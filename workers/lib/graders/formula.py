"""`calculate_output` of a multi grader: arithmetic over the graders' names. Parsed by hand; nothing
is evaluated.

sum     = product (("+" | "-") product)*
product = sign (("*" | "/") sign)*
sign    = ("+" | "-")* power
power   = atom ("^" sign)?
atom    = number | name | function "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

FUNCTIONS: dict[
    str, tuple[Callable[..., float], int, int]
] = {  # function, least and most arguments
    "min": (min, 1, 64),
    "max": (max, 1, 64),
    "abs": (abs, 1, 1),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "exp": (math.exp, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 1),
}
MAX_LENGTH, MAX_DEPTH = 4_000, 64
_TOKEN = re.compile(
    r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|[-+*/^(),]))"
)
Node = Callable[[Mapping[str, float]], float]


class FormulaError(ValueError):
    """The formula cannot be parsed, names a grader that does not exist, or has no finite value."""


def tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise FormulaError(f"“{text[at : at + 10]}” at {at} cannot be read")
        found.append("^" if match[3] == "**" else match[0].strip())
        at = match.end()
    return found


class Formula:
    """A parsed formula; `names` are the graders in it. Raises FormulaError for an invalid text."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise FormulaError(f"longer than {MAX_LENGTH} characters")
        self.names: set[str] = set()
        self._tokens, self._at, self._depth = tokens(text), 0, 0
        self._node = self._sum()
        if self._at < len(self._tokens):
            raise FormulaError(f"“{self._tokens[self._at]}” is too much")

    def __call__(self, values: Mapping[str, float]) -> float:
        """The value. Raises FormulaError for a division by zero and anything else without a finite
        real value.
        """
        try:
            value = self._node(values)
        except (ArithmeticError, ValueError, KeyError) as error:
            raise FormulaError(f"it has no value here: {error}") from error
        if isinstance(value, complex) or not math.isfinite(value):
            raise FormulaError("its value is not a finite number")
        return float(value)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if token == "" or (wanted and token not in wanted):
            raise FormulaError(
                f"{' or '.join(wanted) or 'a value'} expected, found {token or 'the end'}"
            )
        self._at += 1
        return token

    def _sum(self) -> Node:
        node = self._product()
        while self._peek() in ("+", "-"):
            node = _add(node, self._take(), self._product())
        return node

    def _product(self) -> Node:
        node = self._sign()
        while self._peek() in ("*", "/"):
            node = _multiply(node, self._take(), self._sign())
        return node

    def _sign(self) -> Node:
        minus = False
        while self._peek() in ("+", "-"):
            minus ^= self._take() == "-"
        node = self._power()
        return (lambda values: -node(values)) if minus else node

    def _power(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormulaError(f"nested deeper than {MAX_DEPTH}")
        base = self._atom()
        if self._peek() == "^":
            self._take()
            exponent = self._sign()
            self._depth -= 1
            return lambda values: math.pow(base(values), exponent(values))
        self._depth -= 1
        return base

    def _atom(self) -> Node:
        token = self._take()
        if token == "(":
            node = self._sum()
            self._take(")")
            return node
        if token[0].isdigit() or token[0] == ".":
            number = float(token)
            return lambda _: number
        if not (token[0].isalpha() or token[0] == "_"):
            raise FormulaError(f"a value expected, found {token}")
        if self._peek() == "(":
            return self._function(token)
        self.names.add(token)
        return lambda values: float(values[token])

    def _function(self, name: str) -> Node:
        if name not in FUNCTIONS:
            raise FormulaError(f"there is no function “{name}”")
        function, least, most = FUNCTIONS[name]
        self._take("(")
        arguments = [self._sum()]
        while self._peek() == ",":
            self._take()
            arguments.append(self._sum())
        self._take(")")
        if not least <= len(arguments) <= most:
            raise FormulaError(f"{name} does not take {len(arguments)} values")
        return lambda values: function(*(argument(values) for argument in arguments))


def _add(left: Node, sign: str, right: Node) -> Node:
    if sign == "+":
        return lambda values: left(values) + right(values)
    return lambda values: left(values) - right(values)


def _multiply(left: Node, sign: str, right: Node) -> Node:
    if sign == "*":
        return lambda values: left(values) * right(values)
    return lambda values: left(values) / right(values)
