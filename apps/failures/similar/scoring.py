"""How similar failures are, and why, without reading a conversation: for the side panel of the
triage screen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import Any, Self

REQUEST_CHARS, TROUBLE_CHARS = 1500, 600
WEIGHTS = {"tools": 0.30, "trouble": 0.40, "request": 0.15}
WORD = re.compile(
    r"(?<!\w)[^\W\d_]+(?:['’_-][^\W\d_]+)*(?!\w)"
)  # anything with a digit in it differs by chance
RULE = "rule:"  # marks the rule among the words of the evidence
SHOWN_TOOLS, SHOWN_WORDS = 2, 4  # terms shown of what they share
COMMON = 0.5

Terms = frozenset[str]


@dataclass(frozen=True)
class Sketch:
    """The tools that a failed run called, and the words of its evidence and of its request."""

    id: int
    tools: Terms
    trouble: Terms
    request: Terms

    @classmethod
    def of(
        cls, id: int, *, tools: Iterable[str], evidence: Mapping[str, Any] | None, request: str
    ) -> Self:
        """`evidence`: {rule, text, quote, …}, the deciding finding; None if there is none."""
        found = evidence or {}
        said = " ".join(str(found.get(key) or "") for key in ("text", "quote"))
        rule = {RULE + str(found["rule"])} if found.get("rule") else set()
        return cls(
            id, frozenset(tools), words(said[:TROUBLE_CHARS]) | rule, words(request[:REQUEST_CHARS])
        )

    @cached_property
    def terms(self) -> frozenset[tuple[str, str]]:
        """(field, term) of all fields."""
        return frozenset((field, term) for field in WEIGHTS for term in getattr(self, field))


@dataclass(frozen=True)
class Alike:
    """`score`, 0 to 1: the weighted cosine of the fields. Shared terms come rarest first, without
    words that most of the compared failures have.
    """

    id: int
    score: float
    tools: tuple[str, ...]
    words: tuple[str, ...]


def words(text: str) -> Terms:
    return frozenset(WORD.findall(text.lower()))


def ranked(one: Sketch, others: Sequence[Sketch], k: int) -> list[Alike]:
    """The `k` most similar to `one`, ties in the given order. Frequent terms count less: ln(1 + n /
    df).
    """
    pool = [one, *others]
    spread = Counter(term for sketch in pool for term in sketch.terms)
    weight = {term: log(1 + len(pool) / n) ** 2 for term, n in spread.items()}
    common = {term for term, n in spread.items() if n > max(2, len(pool) * COMMON)}
    scored = sorted(
        ((_score(one, other, weight), other) for other in others), key=lambda item: -item[0]
    )
    return [_alike(one, other, score, weight, common) for score, other in scored[:k]]


Weight = Mapping[tuple[str, str], float]  # (field, term): the square of its IDF


def _score(one: Sketch, other: Sketch, weight: Weight) -> float:
    total = 0.0
    for field, share in WEIGHTS.items():
        first, second = getattr(one, field), getattr(other, field)
        if both := first & second:
            lengths = _sum(first, field, weight) * _sum(second, field, weight)
            total += share * _sum(both, field, weight) / sqrt(lengths)
    return round(total / sum(WEIGHTS.values()), 6)


def _sum(terms: Terms, field: str, weight: Weight) -> float:
    return sum(weight[field, term] for term in terms)


def _alike(
    one: Sketch, other: Sketch, score: float, weight: Weight, common: Set[tuple[str, str]]
) -> Alike:
    both = sorted(
        one.terms & other.terms,
        key=lambda term: (-weight[term] * WEIGHTS[term[0]], -len(term[1]), term),
    )
    tools = [term for field, term in both if field == "tools"]
    said = [
        term
        for field, term in both
        if field != "tools"
        and (field, term) not in common
        and not term.startswith(RULE)
        and term not in one.tools
    ]
    return Alike(
        other.id, score, tuple(tools[:SHOWN_TOOLS]), tuple(dict.fromkeys(said))[:SHOWN_WORDS]
    )
