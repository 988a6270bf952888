"""Splits unit tests written as `assert` statements, so that the answer's code never has access to
the expected values. Pure.

`assert f(2) == [4]` becomes the expression `f(2)`, whose value leaves the sandbox as plain data,
and the expectation `[4]`, which is compared outside. So an `__eq__` that is always true, patched
builtins or code that reads its caller's frame gain nothing.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_SETS = {"set": set, "frozenset": frozenset}

# Runs in the sandbox. A value of a subclass is converted like its base class, with the base class's
# own methods.
PLAIN = """
from decimal import Decimal
from fractions import Fraction

def plain(value):
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return ["float", float.__repr__(value)]
    if isinstance(value, str):
        return ["str", str.__add__(value, "")]
    if isinstance(value, bytes):
        return ["bytes", list(bytes.__iter__(value))]
    if isinstance(value, complex):
        return ["complex", complex.__repr__(value)]
    for base in (list, tuple, set, frozenset, range):
        if isinstance(value, base):
            return [base.__name__, [plain(item) for item in base.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", [[plain(key), plain(item)] for key, item in dict.items(value)]]
    if isinstance(value, (Decimal, Fraction)):
        return ["ratio", *map(str, value.as_integer_ratio())]
    if type(value) in (type({}.keys()), type({}.items())):
        return ["set", [plain(item) for item in value]]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"the value is a {type(value).__name__}, which cannot be compared with plain \
data")
"""


def value_of(plain: Any) -> Any:
    """The value that `plain` wrote in the sandbox. Raises ValueError or TypeError for invalid
    data.
    """
    if not isinstance(plain, list):
        return plain
    match plain:
        case ["float", str(text)]:
            return float(text)
        case ["str", str(text)]:
            return text
        case ["bytes", list(numbers)]:
            return bytes(numbers)
        case ["complex", str(text)]:
            return complex(text)
        case ["list", list(items)]:
            return [value_of(item) for item in items]
        case ["tuple", list(items)]:
            return tuple(value_of(item) for item in items)
        case ["set" | "frozenset" as kind, list(items)]:
            return _SETS[kind](value_of(item) for item in items)
        case ["range", list(items)]:
            return _Range(items)
        case ["dict", list(pairs)]:
            return {value_of(key): value_of(item) for key, item in pairs}
        case ["ratio", str(top), str(bottom)]:
            return Fraction(int(top), int(bottom))
    raise ValueError("no plain value")


class _Range(tuple):
    """The numbers of a range, which is only equal to another range's."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Range) and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


@dataclass(frozen=True, slots=True)
class Assertion:
    """`before`: statements that run first; `expression`: gives the code's value; `expected`: an
    expression of constants and builtins, "" if only truth is tested; `holds(value, expected)`.
    """

    before: str
    expression: str
    expected: str
    holds: Callable[[Any, Any], bool]

    def is_met(self, value: Any, wanted: Any) -> bool:
        try:
            return bool(self.holds(value, wanted))
        except (TypeError, ValueError, ArithmeticError, RecursionError):
            return False

    def constant(self) -> tuple[Any, bool]:
        """(the expected value, True) if it is a literal."""
        try:
            return (ast.literal_eval(self.expected) if self.expected else None), True
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None, False


def taken_apart(test: str) -> Assertion | None:
    """The assertion at the end of a test; None if it cannot be split, in which case the test runs
    unchanged.
    """
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not body or not isinstance(body[-1], ast.Assert):
        return None
    before = ast.Module(body[:-1], [])
    if any(isinstance(node, ast.Assert) for node in ast.walk(before)):
        return None
    return _assertion(ast.unparse(before), body[-1].test)


def _assertion(before: str, test: ast.expr) -> Assertion | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return Assertion(
            before, f"bool({ast.unparse(test.operand)})", "", lambda value, _: value is False
        )
    if (close := _closeness(test)) is not None:
        return Assertion(before, *close)
    if isinstance(test, ast.Compare):
        pair = _sides(test.left, test.comparators[0]) if len(test.ops) == 1 else None
        if pair is None:
            return None
        compare = COMPARED[type(test.ops[0])]
        value, wanted, swapped = pair
        return Assertion(
            before,
            value,
            wanted,
            (lambda given, right: compare(right, given)) if swapped else compare,
        )
    if isinstance(test, ast.BoolOp):
        return None
    return Assertion(before, f"bool({ast.unparse(test)})", "", lambda value, _: value is True)


def _closeness(test: ast.expr) -> tuple[str, str, Callable[[Any, Any], bool]] | None:
    """Matches abs(f(x) - 1.5) < 0.01 and math.isclose(f(x), 1.5, …)."""
    match test:
        case ast.Compare(
            left=ast.Call(
                func=ast.Name(id="abs"),
                args=[ast.BinOp(left=one, op=ast.Sub(), right=other)],
                keywords=[],
            ),
            ops=[ast.Lt() | ast.LtE() as sign],
            comparators=[most],
        ) if _is_constant(most):
            compare = COMPARED[type(sign)]
            pair = _sides(one, other)
            return pair and (
                pair[0],
                f"({pair[1]}, {ast.unparse(most)})",
                lambda given, right: compare(abs(given - right[0]), right[1]),
            )
        case ast.Call(
            func=ast.Name(id="isclose") | ast.Attribute(attr="isclose", value=ast.Name(id="math")),
            args=[one, other],
        ) if all(
            keyword.arg in ("rel_tol", "abs_tol") and _is_constant(keyword.value)
            for keyword in test.keywords
        ):
            pair = _sides(one, other)
            options = ", ".join(
                f"{keyword.arg!r}: {ast.unparse(keyword.value)}" for keyword in test.keywords
            )
            return pair and (
                pair[0],
                f"({pair[1]}, {{{options}}})",
                lambda given, right: math.isclose(given, right[0], **right[1]),
            )
    return None


def _sides(one: ast.expr, other: ast.expr) -> tuple[str, str, bool] | None:
    """(the code's side, the expected side, whether the code's is the left one). A literal is the
    expected side. Of two expressions it is the one with only builtins, unless both have: the code
    may have redefined a builtin.
    """
    for known in (_is_literal, _is_constant):
        left, right = known(one), known(other)
        if right and (known is _is_literal or not left):
            return ast.unparse(one), ast.unparse(other), False
        if left and not right:
            return ast.unparse(other), ast.unparse(one), True
    return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_constant(node: ast.expr) -> bool:
    """Whether an expression uses no names but builtins, so that the code under test does not affect
    its value.
    """
    return all(
        hasattr(builtins, found.id) for found in ast.walk(node) if isinstance(found, ast.Name)
    ) and not any(
        isinstance(
            found,
            ast.Lambda | ast.comprehension | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom,
        )
        for found in ast.walk(node)
    )
