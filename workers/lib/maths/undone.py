"""Operations that an answer leaves to be done: 17+25 is the question, 42 the answer. Needs sympy.

An exact value may be written in any usual form: a fraction, a power (2^{10}, 6.02·10^{23}), a root
or a logarithm that is irrational, a multiple of π, a trigonometric value, a factored or expanded
polynomial. What remains to be done is arithmetic with numbers (a sum, a product, a quotient, like
terms), a function whose value is rational (√16, 5!), and all of calculus.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import sympy

from workers.lib.maths.reading import Node

CALCULUS = {
    sympy.Integral: "an integral",
    sympy.Sum: "a sum",
    sympy.Product: "a product",
    sympy.Limit: "a limit",
    sympy.Derivative: "a derivative",
}
FUNCTIONS = (
    sympy.Pow,
    sympy.exp,
    sympy.log,
    sympy.factorial,
    sympy.binomial,
    sympy.gamma,
    sympy.Abs,
    sympy.floor,
    sympy.ceiling,
    sympy.Mod,
    sympy.Min,
    sympy.Max,
)
IMAGINARY = sympy.Symbol("i")
_PERCENT = sympy.Rational(1, 100)
_BINOMIAL = re.compile(r"\\[dt]?binom(?![a-z])|\\choose(?![a-z])")
# The parser divides integers at once, so a quotient is read from the text. Decimals are reduced
# fractions there.
_QUOTIENT = re.compile(
    r"\\frac\s*\{\s*-?(\d+)\s*\}\s*\{\s*-?(\d+)\s*\}|(?<![\d^])(\d+)\s*/\s*(\d+)"
)


def undone(node: Node, as_written: Any) -> set[str]:
    """What is left to be done in an answer, by name. `as_written` makes an expression of a value's
    text.
    """
    left = set().union(*(undone(part, as_written) for part in node.parts))
    if node.kind == "value":
        left |= set(_in_text(node.text)) | set(_in_expression(as_written(node.text)))
    return left


def _in_text(text: str) -> Iterator[str]:
    if _BINOMIAL.search(text):
        yield "a binomial coefficient"
    for match in _QUOTIENT.finditer(text):
        top, bottom = (int(part) for part in match.groups() if part is not None)
        if bottom > 1 and top % bottom == 0:
            yield "a quotient"


def _in_expression(expression: Any) -> Iterator[str]:
    name = next((name for kind, name in CALCULUS.items() if isinstance(expression, kind)), None)
    if name:
        yield name
        return
    if isinstance(expression, sympy.Add) and _has_like_terms(expression):
        yield "a sum"
    elif isinstance(expression, sympy.Mul):
        yield from _in_product(expression)
    elif isinstance(expression, FUNCTIONS):
        yield from _in_function(expression)
    for part in expression.args:
        yield from _in_expression(part)


def _parts(expression: Any, kind: type) -> Iterator[Any]:
    """The terms or factors, also those in brackets."""
    for part in expression.args:
        yield from _parts(part, kind) if isinstance(part, kind) else (part,)


def _has_like_terms(expression: Any) -> bool:
    terms = list(_parts(expression, sympy.Add))
    return not _is_mixed_number(terms) and max(Counter(map(_without_number, terms)).values()) > 1


def _is_mixed_number(terms: list) -> bool:
    """2 + 1/3, which some people write for a mixed number."""
    if len(terms) != 2 or not all(term.is_Rational for term in terms):
        return False
    part, whole = sorted(terms, key=abs)
    return whole.is_Integer and not part.is_Integer and abs(part) < 1 and part * whole > 0


def _without_number(term: Any) -> Any:
    """The term without its coefficient: x for 3x, 1 for 25 and for 7^2."""
    factors = _parts(term, sympy.Mul) if isinstance(term, sympy.Mul) else (term,)
    return sympy.Mul(*(factor for factor in factors if not _is_rational(factor)))


def _is_rational(expression: Any) -> bool:
    """Whether it is a rational number written with the four operations and powers."""
    return expression.is_Rational or (
        isinstance(expression, sympy.Add | sympy.Mul | sympy.Pow | sympy.UnevaluatedExpr)
        and all(map(_is_rational, expression.args))
        and (not isinstance(expression, sympy.Pow) or expression.exp.is_Integer)
    )


def _is_complex(expression: Any) -> bool:
    """Whether it is a sum such as 2+3i, without variables and roots."""
    return (
        isinstance(expression, sympy.Add)
        and IMAGINARY in expression.free_symbols
        and {_without_number(term) for term in _parts(expression, sympy.Add)}
        <= {sympy.S.One, IMAGINARY}
    )


def _in_product(expression: Any) -> Iterator[str]:
    numbers, denominators, sums = [], [], 0
    for factor in _parts(expression, sympy.Mul):
        factor = factor.args[0] if isinstance(factor, sympy.UnevaluatedExpr) else factor
        if factor.is_Rational:
            numbers += [factor] if abs(factor) != 1 and factor != _PERCENT else []
        elif isinstance(factor, sympy.Pow) and factor.exp == -1 and factor.base.is_Rational:
            denominators.append(factor.base)
        sums += _is_complex(factor)
    if len(numbers) > 1 or sums > 1:
        yield "a product"
    if len(denominators) > 1 or any(
        not top.is_Integer or (top / bottom).is_Integer
        for top in numbers
        for bottom in denominators
    ):
        yield "a quotient"


def _in_function(expression: Any) -> Iterator[str]:
    """A function whose value is rational; a power of a number by a whole number is a way to write
    it.
    """
    if expression.free_symbols - {IMAGINARY} or _is_rational(expression):
        return
    if isinstance(expression, sympy.Pow) and _is_complex(expression.base):
        yield "a power"
    elif isinstance(expression, sympy.factorial):
        yield "a factorial"
    elif _computed(expression).is_Rational:
        is_root = isinstance(expression, sympy.Pow)
        yield (
            "a root"
            if is_root
            else "a logarithm"
            if isinstance(expression, sympy.log)
            else "a function"
        )


def _computed(expression: Any) -> Any:
    return expression.func(*map(_computed, expression.args)) if expression.args else expression
