"""`calculate_output` of a multi grader: arithmetic over the graders' names. Python's parser reads
it; only the operators and functions below are computed, nothing is evaluated.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

FUNCTIONS: dict[
    str, tuple[Callable[..., float], int, int]
] = {  # function, least and most arguments
    "min": (lambda *values: min(values), 1, 64),
    "max": (lambda *values: max(values), 1, 64),
    "abs": (abs, 1, 1),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "exp": (math.exp, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "log": (math.log, 1, 1),
}
OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
MAX_LENGTH = 4_000
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<call>[A-Za-z_]\w*)(?=\s*\()"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|[-+*/^(),]))\s*"
)

Node = Callable[[Mapping[str, float]], float]


class FormulaError(ValueError):
    """The formula cannot be parsed, names a grader that does not exist, or has no finite value."""


class Formula:
    """A parsed formula; `names` are the graders in it. Raises FormulaError for an invalid text."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise FormulaError(f"longer than {MAX_LENGTH} characters")
        self._names: list[str] = []
        try:
            self._node = self._of(ast.parse(self._python(text), mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError) as error:
            reason = getattr(error, "msg", "it is nested too deep")
            raise FormulaError(f"it cannot be read: {reason}") from error
        self.names = set(self._names)

    def __call__(self, values: Mapping[str, float]) -> float:
        """The value. Raises FormulaError for a division by zero and anything else without a finite
        real value.
        """
        try:
            value = self._node(values)
        except (ArithmeticError, ValueError, KeyError, RecursionError) as error:
            raise FormulaError(f"it has no value here: {error}") from error
        if not math.isfinite(value):
            raise FormulaError("its value is not a finite number")
        return float(value)

    def _python(self, text: str) -> str:
        """The text as Python reads it: names, which may be words of Python's, are numbered."""
        parts, at = [], 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                raise FormulaError(f"“{text[at : at + 10]}” at {at} cannot be read")
            at, kind = match.end(), match.lastgroup
            token = match[kind]
            if kind == "name":
                self._names.append(token)
                token = f"_{len(self._names) - 1}"
            elif kind == "number":
                token = repr(float(token)).replace("inf", "1e999")
            parts.append(token.replace("^", "**"))
        return " ".join(parts)

    def _of(self, node: Any) -> Node:
        match node:
            case ast.Constant(value=value):
                return lambda values: value
            case ast.Name(id=number):
                name = self._names[int(number[1:])]
                return lambda values: float(values[name])
            case ast.UnaryOp(op=sign, operand=operand):
                function, parts = OPERATORS[type(sign)], [operand]
            case ast.BinOp(left=left, op=sign, right=right):
                function, parts = OPERATORS[type(sign)], [left, right]
            case ast.Call(func=ast.Name(id=name), args=parts):
                function = _function(name, len(parts))
            case _:
                raise FormulaError("it is more than numbers, graders, functions and + - * / ^")
        nodes = [self._of(part) for part in parts]
        return lambda values: function(*[part(values) for part in nodes])


def _function(name: str, count: int) -> Callable[..., float]:
    if name not in FUNCTIONS:
        raise FormulaError(f"there is no function “{name}”")
    function, least, most = FUNCTIONS[name]
    if not least <= count <= most:
        raise FormulaError(f"{name} does not take {count} values")
    return function
