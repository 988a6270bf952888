"""What an answer leaves to be worked out: 17+25 is the question, 42 the answer. Needs sympy.

One rule decides: an answer is finished if evaluating it does not make it simpler. Each part of the
answer as it is written is compared with its evaluated form, and the whole with the expected answer:

- The *kind* of an expression is its strongest operation: arithmetic (with whole powers, π, e and
  e^{iθ}), then roots and absolute values, then functions. No part may evaluate to a weaker kind
  (√16, log_2 8, arcsin 1), and the answer may not be of a stronger kind than the expected one
  (sin 30° for 1/2), nor have variables where that has none.
- The *cost* is the number of operations. A part that is a rational number may not evaluate to
  something cheaper (17+25, 3·14, 5!). Others may by TOLERANCE, because √12/2 and (x-1)^2+3 are
  usual forms, and only sums are expanded, so factored and expanded polynomials are both finished.
- Like terms, a product of several numbers and a fraction that divides out are never finished, nor
  is calculus.

Fractions, decimals, mixed numbers and powers of numbers (6/8, 2^{10}, 6.02·10^{23}, 3·2^5) are ways
to write a number and cost nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

import sympy

from workers.lib.maths.comparing import as_in, as_written, in_same_terms, parsed
from workers.lib.maths.reading import Node

ARITHMETIC, ROOTS, FUNCTIONS = range(3)
TOLERANCE = 1  # operations
MOST_EXPANDED = 12  # the highest power in a sum that is expanded
CALCULUS = {
    sympy.Integral: "an integral",
    sympy.Sum: "a sum",
    sympy.Product: "a product",
    sympy.Limit: "a limit",
    sympy.Derivative: "a derivative",
}
NAMES = {
    sympy.Add: "a sum",
    sympy.Mul: "a product",
    sympy.log: "a logarithm",
    sympy.factorial: "a factorial",
    sympy.Abs: "an absolute value",
}
IMAGINARY = sympy.Symbol("i")
_PERCENT = sympy.Rational(1, 100)
_BINOMIAL = re.compile(r"\\[dt]?binom(?![a-z])|\\choose(?![a-z])")
# The parser divides integers at once, so a quotient is read from the text. Decimals are reduced
# fractions there.
_QUOTIENT = re.compile(
    r"\\frac\s*\{\s*-?(\d+)\s*\}\s*\{\s*-?(\d+)\s*\}|(?<![\d^])(\d+)\s*/\s*(\d+)"
)
# The parser computes e^{\ln x} at once.
_INVERSE = re.compile(r"(?<![A-Za-z])e\s*\^\s*\{?\s*\(?\s*\d*\s*\\ln(?![a-z])")


def undone(gold: Node, given: Node) -> set[str]:
    """What an answer that equals the gold one leaves to be done, and the gold one does not, by
    name.
    """
    if gold.kind == given.kind == "value":
        gold, given = in_same_terms(gold, given)
    texts, gold_texts = list(_texts(given)), list(_texts(gold))
    gold_values = list(map(as_written, gold_texts))
    left = set().union(*map(_in_text, texts)) - set().union(*map(_in_text, gold_texts))
    left_by_gold = set().union(*map(_in_expression, gold_values))
    strongest = max(map(kind, gold_values), default=ARITHMETIC)
    if any(IMAGINARY in value.free_symbols for value in gold_values):
        strongest = max(strongest, ROOTS)  # √2·e^{iπ/4} for 1+i
    for value in map(as_written, texts):
        left |= set(_in_expression(value)) - left_by_gold
        if kind(value) > strongest:
            left.add(_name(_of_kind(value, kind(value))))
    if gold.kind == given.kind == "value" and not _variables(as_written(gold.text)):
        value = as_in(parsed(gold.text), parsed(given.text))
        left |= {"variables"} if value.free_symbols else set()
    return left


def _texts(node: Node) -> Iterator[str]:
    if node.kind == "value":
        yield node.text
    for part in node.parts:
        yield from _texts(part)


def _in_text(text: str) -> Iterator[str]:
    if _BINOMIAL.search(text):
        yield "a binomial coefficient"
    if _INVERSE.search(text):
        yield "a power"
    for match in _QUOTIENT.finditer(text):
        top, bottom = (int(part) for part in match.groups() if part is not None)
        if bottom > 1 and top % bottom == 0:
            yield "a quotient"


def _in_expression(expression: Any) -> Iterator[str]:
    if name := next((name for kind, name in CALCULUS.items() if isinstance(expression, kind)), ""):
        yield name
        return
    is_quotient = isinstance(expression, sympy.Pow) and expression.exp.is_negative
    if is_quotient and IMAGINARY in expression.free_symbols and not _variables(expression):
        yield "a quotient"
    if isinstance(expression, sympy.Add) and _has_like_terms(expression):
        yield "a sum"
    elif isinstance(expression, sympy.Mul):
        yield from _in_product(expression)
    if expression.args and not expression.has(*CALCULUS) and _evaluates(expression):
        yield _name(expression)
    for part in expression.args:
        yield from _in_expression(part)


def _evaluates(expression: Any) -> bool:
    """Whether evaluating it makes it simpler. Functions of variables only get another form."""
    value = evaluated(expression)
    if kind(value) < kind(expression):
        return True
    is_sum = isinstance(expression, sympy.Add)
    if is_sum and _is_mixed_number(list(_parts(expression, sympy.Add))):
        return False
    if _variables(expression) and not (is_sum or isinstance(expression, sympy.Mul | sympy.Pow)):
        return False
    return cost(value) < cost(expression) - (0 if _is_number(value) else TOLERANCE)


@lru_cache(maxsize=1024)
def evaluated(expression: Any) -> Any:
    """The expression with everything computed that sympy computes by itself, and sums expanded if
    they get shorter.
    """
    if not expression.args:
        return sympy.I if expression == IMAGINARY else expression
    parts = list(map(evaluated, expression.args))
    if isinstance(expression, sympy.UnevaluatedExpr):
        return parts[0]
    value = expression.func(*parts)
    powers = (part.exp for part in value.atoms(sympy.Pow) if part.exp.is_Integer)
    if (isinstance(expression, sympy.Add) or not value.free_symbols) and all(
        abs(power) <= MOST_EXPANDED for power in powers
    ):
        return min(value, sympy.expand(value), key=lambda form: (kind(form), cost(form)))
    return value


def kind(expression: Any) -> int:
    """ARITHMETIC, ROOTS or FUNCTIONS: the strongest operation in it."""
    return max((_own_kind(part) for part in sympy.preorder_traversal(expression)), default=0)


def _own_kind(expression: Any) -> int:
    if isinstance(expression, sympy.Pow | sympy.exp):
        power = evaluated(expression.exp)
        if power.is_Integer or (isinstance(expression, sympy.exp) and _is_angle(power)):
            return ARITHMETIC
        return ROOTS if power.is_Rational else FUNCTIONS
    if isinstance(expression, sympy.Abs):
        return ROOTS
    is_arithmetic = not expression.args or isinstance(
        expression, sympy.Add | sympy.Mul | sympy.UnevaluatedExpr | sympy.Tuple
    )
    return ARITHMETIC if is_arithmetic else FUNCTIONS


def cost(expression: Any) -> int:
    """The number of operations, without those that are a way to write a number."""
    if isinstance(expression, sympy.Add):
        terms = list(_parts(expression, sympy.Add))
        return len(terms) - 1 + sum(map(cost, terms))
    if isinstance(expression, sympy.Mul):
        return _cost_of_product(expression)
    inner = sum(map(cost, expression.args))
    return inner + bool(expression.args and not _is_notation(expression))


def _cost_of_product(expression: Any) -> int:
    """Numbers are one factor, so are roots of numbers, and a repeated factor costs as much as its
    power.
    """
    numbers, denominators, others = _factors(expression)
    by_base: dict[Any, list] = defaultdict(list)
    for factor in others:
        is_power = isinstance(factor, sympy.Pow) and factor.exp.is_Rational
        by_base[factor.base if is_power and not _is_notation(factor) else factor].append(factor)
    powers = [base for base in by_base if _is_notation(base) and not base.free_symbols]
    roots = [base for base in by_base if base.is_Rational]
    pieces = bool(numbers or denominators or powers) + len(by_base) - len(powers) - len(roots[1:])
    return (
        max(0, len(numbers) - 1)
        + max(0, len(denominators) - 1)
        + max(0, pieces - 1)
        + sum(
            cost(base) + (len(factors) > 1 or factors[0] != base)
            for base, factors in by_base.items()
        )
    )


def _factors(product: Any) -> tuple[list, list, list]:
    """The numbers, those in denominators, and all other factors; ±1 and % are none."""
    numbers, denominators, others = [], [], []
    for factor in _parts(product, sympy.Mul):
        factor = factor.args[0] if isinstance(factor, sympy.UnevaluatedExpr) else factor
        if factor.is_Rational:
            numbers += [factor] if abs(factor) != 1 and factor != _PERCENT else []
        elif isinstance(factor, sympy.Pow) and factor.exp == -1 and factor.base.is_Rational:
            denominators.append(factor.base)
        else:
            others.append(factor)
    return numbers, denominators, others


def _is_notation(expression: Any) -> bool:
    """Whether it is a power of a number, 1/x, or brackets."""
    return isinstance(expression, sympy.UnevaluatedExpr) or (
        isinstance(expression, sympy.Pow)
        and (expression.exp == -1 or (expression.base.is_Rational and expression.exp.is_Integer))
    )


def _parts(expression: Any, kind: type) -> Iterator[Any]:
    """The terms or factors, also those in brackets."""
    for part in expression.args:
        yield from _parts(part, kind) if isinstance(part, kind) else (part,)


def _has_like_terms(expression: Any) -> bool:
    terms = list(_parts(expression, sympy.Add))
    if _is_mixed_number(terms) or expression.has(*CALCULUS):
        return False
    simple = chain.from_iterable(map(_in_primes, map(evaluated, terms)))
    return max(Counter(map(_without_number, simple)).values()) > 1


def _in_primes(term: Any) -> tuple:
    """ln 6 as ln 2 and ln 3, so that ln 6 - ln 3 has like terms and ln 2 + ln 3 has none."""
    sizes = [part.args[0] for part in term.atoms(sympy.log)]
    if not sizes or any(not size.is_Rational or size.p * size.q > 10**12 for size in sizes):
        return (term,)
    return sympy.Add.make_args(sympy.expand_log(term, factor=True))


def _without_number(term: Any) -> Any:
    """The term without its coefficient: x for 3x, 1 for 25."""
    return term.as_coeff_Mul()[1]


def _is_mixed_number(terms: list) -> bool:
    """2 + 1/3, which some people write for a mixed number."""
    if len(terms) != 2 or not all(term.is_Rational for term in terms):
        return False
    part, whole = sorted(terms, key=abs)
    return whole.is_Integer and not part.is_Integer and abs(part) < 1 and part * whole > 0


def _in_product(expression: Any) -> Iterator[str]:
    numbers, denominators, others = _factors(expression)
    if len(numbers) > 1 or sum(map(_is_complex, others)) > 1:
        yield "a product"
    divides = any(
        not top.is_Integer or (top / bottom).is_Integer
        for top in numbers
        for bottom in denominators
    )
    is_whole = denominators and not expression.has(*CALCULUS) and evaluated(expression).is_Integer
    if len(denominators) > 1 or divides or is_whole or _divides_out(others):
        yield "a quotient"


def _is_complex(expression: Any) -> bool:
    """Whether it is a sum such as 2+3i, without variables and roots."""
    return isinstance(expression, sympy.Add) and (
        IMAGINARY in expression.free_symbols and _is_number(evaluated(expression))
    )


def _divides_out(factors: list) -> bool:
    """Whether a numerator and a denominator have a factor with variables in common."""
    tops, bottoms = [], []
    for factor in factors:
        is_bottom = isinstance(factor, sympy.Pow) and factor.exp.is_Rational and factor.exp < 0
        (bottoms if is_bottom else tops).append(factor)
    top, bottom = sympy.Mul(*tops), 1 / sympy.Mul(*bottoms)
    if not _variables(top) or not _variables(bottom) or kind(top) or kind(bottom):
        return False
    try:
        return bool(_variables(sympy.gcd(top, bottom)))
    except sympy.PolynomialError:
        return False


def _variables(expression: Any) -> set:
    return expression.free_symbols - {IMAGINARY}


def _is_number(value: Any) -> bool:
    """Whether it is rational, or such as 2+3i."""
    return all(
        part.is_Rational or (part / sympy.I).is_Rational for part in sympy.Add.make_args(value)
    )


def _is_angle(power: Any) -> bool:
    """Whether e to this power is a way to write a complex number."""
    return bool(not power.free_symbols and (power / sympy.I).is_real)


def _of_kind(expression: Any, wanted: int) -> Any:
    return next(part for part in sympy.preorder_traversal(expression) if _own_kind(part) == wanted)


def _name(expression: Any) -> str:
    if isinstance(expression, sympy.Pow):
        return "a power" if evaluated(expression.exp).is_Integer else "a root"
    return next(
        (name for kind, name in NAMES.items() if isinstance(expression, kind)), "a function"
    )
