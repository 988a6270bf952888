"""Compares two parsed answers. Needs sympy and math-verify's LaTeX parser, so it only runs in
`workers.maths`.

Expressions are compared by value at fixed pseudo-random points, with 50 digits and, where that is
not conclusive, up to MORE_DIGITS: two that agree at all of them are equal with near certainty
(Schwartz 1980, Zippel 1979 for polynomials).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

from workers.lib.maths.reading import Node, Unreadable, expression
from workers.lib.maths.units import split_unit

MOST_DIGITS = 100_000.0
DIGITS, MORE_DIGITS, POINTS, NEEDED = 50, 500, 6, 4
BRACKETS = ("()", "[)", "(]", "[]")
_UNDONE = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)
_CONFIG = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)


@lru_cache(maxsize=256)
def parsed(text: str) -> Any:
    """The expression. Raises Unreadable."""
    found = as_written(text)
    return found.xreplace({symbol: sympy.I for symbol in found.free_symbols if symbol.name == "i"})


@lru_cache(maxsize=256)
def as_written(text: str) -> Any:
    """The expression with i as a symbol: replacing it computes the sums around it. Raises
    Unreadable.
    """
    try:
        found = latex2sympy(
            text,
            is_real=None,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_CONFIG,
        )
    except MemoryError:
        raise
    except Exception as error:  # the parser may raise anything
        raise Unreadable(f"not an expression: {text[:60]!r}") from error
    if not isinstance(found, sympy.Expr) or found.atoms(sympy.core.function.AppliedUndef):
        raise Unreadable(f"not an expression: {text[:60]!r}")
    _size(found)
    return found


def _size(expression: Any) -> float:
    """The approximate size of a number, so that no tower of powers is computed. Raises
    Unreadable.
    """
    sizes = [_size(part) for part in expression.args]
    try:
        if isinstance(expression, sympy.Pow):
            return max(sizes[0], 1.0) ** _within(sizes[1], MOST_DIGITS)
        if isinstance(expression, sympy.factorial | sympy.gamma):
            return math.gamma(_within(sizes[0], 10_000) + 1)
        if expression.is_Number:
            return abs(float(expression))
        return (
            math.prod(max(size, 1.0) for size in sizes)
            if isinstance(expression, sympy.Mul)
            else sum(sizes) or 4.0
        )
    except OverflowError:
        return math.inf


def _within(size: float, most: float) -> float:
    if size > most:
        raise Unreadable("a number too large to compute")
    return size


def _swapped(name: str) -> bool:
    """Whether variables are in an unusual order, such as (y,x): neighbours in the alphabet, but not
    sorted.
    """
    letters = re.sub(r"[(),]", "", name)
    usual = "".join(sorted(letters))
    return name.startswith("(") and letters != usual and usual in "abcdefghijklmnopqrstuvwxyz"


def named(node: Node) -> Node | None:
    """(x, y) = (1, 2) as the list x = 1, y = 2; None for anything else."""
    names = (
        node.name[1:-1].split(",") if node.name.startswith("(") and node.kind == "series" else []
    )
    if len(names) < 2 or len(names) != len(node.parts) or node.text != "()":
        return None
    return Node(
        "list",
        parts=tuple(replace(part, name=name) for part, name in zip(node.parts, names, strict=True)),
    )


def as_in(gold: Any, given: Any) -> Any:
    """The answer, with the gold answer's names for a constant of integration (C, c) and for the
    imaginary unit (i, j).
    """
    names = {symbol.name: symbol for symbol in given.free_symbols}
    known = {symbol.name: symbol for symbol in gold.free_symbols}
    if "C" in known and "C" not in names and "c" in names and "c" not in known:
        given = given.xreplace({names["c"]: known["C"]})
    if "j" in names and not known and gold.has(sympy.I) and not given.has(sympy.I):
        given = given.xreplace({names["j"]: sympy.I})
    return given


def _place(node: Node) -> float:
    """The position of a bound on the number line. Raises Unreadable if it is not a real number."""
    found = parsed(node.text) if node.kind == "value" and not node.unit else sympy.nan
    try:
        return float(found)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unreadable("a bound that is no number") from error


def check(node: Node) -> None:
    """Raises Unreadable if one of its expressions is invalid."""
    for part in node.parts:
        check(part)
    if node.kind == "value":
        parsed(node.text)


def in_same_terms(gold: Node, given: Node) -> tuple[Node, Node]:
    """Both with units or both with variables, where letters may be either. “5 m” looks like a
    product: it is a quantity where the other answer has a unit that measures the same, or where
    both end in such letters. “3 cd” looks like candelas: it is a product where the other answer
    has variables, but no unit.
    """
    nodes = (gold, given)
    with_units = tuple(map(_with_letters_as_unit, nodes))
    if _measure_the_same(*with_units):
        return with_units
    as_variables = tuple(map(_with_letters_as_variables, nodes))
    return tuple(
        variables if not other.unit and parsed(other.text).free_symbols else node
        for node, variables, other in zip(nodes, as_variables, as_variables[::-1], strict=True)
    )


def _with_letters_as_unit(node: Node) -> Node:
    if node.unit or not (split := split_unit(node.text, named=False, letters=True)):
        return node
    return replace(node, text=split[0], unit=split[1])


def _with_letters_as_variables(node: Node) -> Node:
    return replace(node, text=expression(node.letters), unit=None) if node.letters else node


def _measure_the_same(gold: Node, given: Node) -> bool:
    return bool(gold.unit and given.unit and gold.unit.measures == given.unit.measures)


class Comparison:
    """An answer compared with a gold answer. `positive`: variables are positive numbers."""

    def __init__(self, positive: bool = False) -> None:
        self.low = 0.1 if positive else -4.0

    def same(self, gold: Node, given: Node) -> bool:
        if given.sides and not self._consistent(given):
            return False
        if (by_name := named(gold)) and (
            (other := named(given))
            or (given.kind == "list" and all(part.name for part in given.parts))
        ):
            return self._same_list(by_name, other or given)
        if (
            gold.kind == "list"
            and (other := named(given))
            and all(part.name for part in gold.parts)
        ):
            return self._same_list(gold, other)
        if gold.name and given.name and gold.name != given.name:
            return self._same_equation(gold, given)
        if gold.kind == "relation" or (given.kind == "relation" and not self._constant(gold)):
            return self._same_relation(gold, given)
        if "∪" in (gold.text, given.text) and self._same_union(gold, given):
            return True
        if gold.kind != given.kind or (not gold.name and _swapped(given.name)):
            return False
        if gold.kind == "value":
            return self._same_value(gold, given)
        if gold.kind == "words":
            return gold.text == given.text
        if gold.kind == "series":
            return gold.text == given.text and self._in_order(gold.parts, given.parts)
        return (gold.text == "cases") == (given.text == "cases") and self._same_list(gold, given)

    def _as_union(self, node: Node) -> list[tuple[str, Node, Node]]:
        """(brackets, low, high) for intervals of numbers, sorted, with touching ones merged. Raises
        Unreadable for anything else.
        """
        nodes = node.parts if node.text == "∪" else (node,)
        if any(
            one.kind != "series" or one.text not in BRACKETS or len(one.parts) != 2 for one in nodes
        ):
            raise Unreadable("no union of intervals")
        found: list[tuple[str, Node, Node]] = []
        for one in sorted(nodes, key=lambda one: (_place(one.parts[0]), one.text[0] == "(")):
            (low, high), brackets = one.parts, one.text
            before, start, end = found[-1] if found else ("", low, low)
            touches = _place(low) == _place(end) and "".join((before[1:], brackets[0])) != ")("
            if not found or not (_place(low) < _place(end) or touches):
                found.append((brackets, low, high))
            elif (_place(high), brackets[1] == "]") > (_place(end), before[1] == "]"):
                found[-1] = (before[0] + brackets[1], start, high)
        return found

    def _same_union(self, gold: Node, given: Node) -> bool:
        try:
            one, other = self._as_union(gold), self._as_union(given)
        except Unreadable:
            return False
        return len(one) == len(other) and all(
            a[0] == b[0] and self._in_order(a[1:], b[1:]) for a, b in zip(one, other, strict=True)
        )

    def _same_list(self, gold: Node, given: Node) -> bool:
        if len({part.name for part in gold.parts if part.name}) > 1 and not any(
            part.name for part in given.parts
        ):
            return self._in_order(gold.parts, given.parts)
        if len(gold.parts) != len(given.parts):
            return False
        left = list(gold.parts)
        for part in given.parts:
            match = next((at for at, other in enumerate(left) if self.same(other, part)), None)
            if match is None:
                return False
            del left[match]
        return True

    def _in_order(self, gold: Iterable[Node], given: Iterable[Node]) -> bool:
        gold, given = tuple(gold), tuple(given)
        return len(gold) == len(given) and all(
            self.same(one, other) for one, other in zip(gold, given, strict=True)
        )

    # Values

    def _same_value(self, gold: Node, given: Node) -> bool:
        gold, given = in_same_terms(gold, given)
        one, other = parsed(gold.text), as_in(parsed(gold.text), parsed(given.text))
        if gold.unit and given.unit:
            return _measure_the_same(gold, given) and self.equal(
                one * parsed(gold.unit.latex), other * parsed(given.unit.latex)
            )
        if any(unit and unit.is_angle for unit in (gold.unit, given.unit)):
            sizes = [parsed(unit.latex) if unit else 1 for unit in (gold.unit, given.unit)]
            return self.equal(one, other) or self.equal(one * sizes[0], other * sizes[1])
        return self.equal(one, other)

    def equal(self, one: Any, other: Any) -> bool:
        one, other = done(one), done(other)
        return self._at_points(
            [one, other], lambda point, *values: _same_at(one, other, point, values)
        )

    def _at_points(self, expressions: list, agree: Callable[..., bool]) -> bool:
        """Whether the values agree at all points where both are defined, of which there must be at
        least NEEDED.
        """
        if all(expression in (sympy.oo, -sympy.oo) for expression in expressions):
            return expressions[0] == expressions[1]
        symbols = sorted(
            set().union(*(expression.free_symbols for expression in expressions)), key=str
        )
        chance, agreed = random.Random(20), 0
        for _ in range(POINTS if symbols else 1):
            point = {
                symbol: sympy.Rational(round(chance.uniform(self.low, 4.0) * 10**9), 10**9)
                for symbol in symbols
            }
            values = [value_of(expression, point) for expression in expressions]
            if any(value is None for value in values):
                if any(value is not None for value in values):
                    return False
                continue
            if not agree(point, *values):
                return False
            agreed += 1
        return agreed >= (NEEDED if symbols else 1)

    # Equations

    def _consistent(self, given: Node) -> bool:
        """A chain such as x = 2 = 3 is only consistent if its numbers are equal."""
        if given.kind != "value":
            return False
        sides = [parsed(side) for side in given.sides]
        numbers = [side for side in sides if not side.free_symbols]
        return (bool(given.name) or len(numbers) == len(sides)) and all(
            self.equal(side, parsed(given.text)) for side in numbers
        )

    def _constant(self, node: Node) -> bool:
        """A number, or a variable that is declared to be one, which must not be rearranged into
        another equation.
        """
        return node.kind != "value" or not parsed(node.text).free_symbols

    def _same_equation(self, gold: Node, given: Node) -> bool:
        is_equation = [bool(node.parts) and node.kind == "value" for node in (gold, given)]
        return (
            all(is_equation)
            and not self._constant(gold)
            and self._same_relation(gold.parts[0], given.parts[0])
        )

    def _same_relation(self, gold: Node, given: Node) -> bool:
        """Equal up to a factor, which must be positive for an inequality."""
        gold, given = (
            node.parts[0] if node.kind == "value" and node.parts else node for node in (gold, given)
        )
        if gold.kind != "relation" or given.kind != "relation" or gold.text != given.text:
            return False
        one, other = (
            done(parsed(node.parts[0].text) - parsed(node.parts[1].text)) for node in (gold, given)
        )
        # the ratio and both sides at the first point; the variables get their own names
        first: list = []

        def proportional(point: dict, a: Any, b: Any) -> bool:
            if not a or not b:
                return False
            if not first:
                fixed = {symbol: sympy.Dummy() for symbol in point}
                first.extend(
                    (
                        b / a,
                        one.xreplace(fixed),
                        other.xreplace(fixed),
                        {fixed[s]: at for s, at in point.items()},
                    )
                )
                return gold.text in ("=", "\\ne") or first[0].is_positive is True
            ratio, one_there, other_there, there = first
            return _same_at(one * other_there, other * one_there, point | there, (ratio * a, b))

        return self._at_points([one, other], proportional)


def _same_at(one: Any, other: Any, point: dict, values: Sequence[Any]) -> bool:
    """Whether the two are equal at a point where they have about `values`, to DIGITS digits. A
    difference that is exactly 0 gets smaller with more digits, however small the numbers are.
    """
    difference = one - other
    if difference.is_Rational:
        return bool(difference == 0)
    size = max(map(abs, values))
    if difference.has(*_UNDONE):  # integrals are computed by quadrature, with fewer correct digits
        return bool(abs(values[0] - values[1]) <= sympy.Float(10) ** -30 * max(1, size))
    few = _size_of(difference, point, DIGITS * 2)
    if few > sympy.Float(10) ** -30 * max(1, size):
        return False
    more = _size_of(difference, point, MORE_DIGITS)
    return bool(not more or more < few * sympy.Float(10) ** -DIGITS)


def _size_of(difference: Any, point: dict, most: int) -> Any:
    """The larger of the real and imaginary part, computed with up to `most` digits; a part without
    a correct digit counts as 0.
    """
    parts = difference.evalf(DIGITS, subs=point, maxn=most).as_real_imag()
    return max(
        abs(part) if part.is_Rational or part._prec > 10 else sympy.Integer(0) for part in parts
    )


def done(expression: Any) -> Any:
    """The expression with its sums, limits and integrals evaluated if possible."""
    return expression.doit() if expression.has(*_UNDONE) else expression


def value_of(expression: Any, point: dict) -> Any:
    """The real or complex value to DIGITS digits; None if there is none."""
    try:
        number = expression.evalf(DIGITS, subs=point)
    except (ValueError, TypeError, ArithmeticError):
        return None
    return number if _is_number(number) else None


def _is_number(found: Any) -> bool:
    parts = found.as_real_imag() if found.is_number and found.is_finite else ()
    return bool(parts) and all(part.is_Float or part.is_Rational for part in parts)
