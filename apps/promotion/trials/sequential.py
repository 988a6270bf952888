"""Always-valid comparison of a candidate's rate with the current version's, while traffic is
shifted. Pure: numpy only.

Each session gives a score x with mean p_candidate − p_current. In a canary, where chance gives a
session to the candidate with probability `share`, x = (y − centre)·(1[candidate]/share −
1[current]/(1 − share)), by inverse-probability weighting (Waudby-Smith, Wu, Ramdas, Karampatziakis
& Mineiro 2022, 2210.10768). In a shadow both answer the same session, and x is the difference.

A difference m is refuted once the capital of somebody who bets against it passes 1/alpha (Ville's
inequality; Waudby-Smith & Ramdas 2024, 2010.09686): the product of 1 ± c·(x − m)/(furthest score −
m), mixed over fixed bets c. That holds at every moment at once, so that one may look after each
session and stop when one likes; base rates and shares may change on the way. `share` and `centre`
are fixed within a step: its first sessions give the centre and are not scored, so the capital
depends on how often each score came, and on no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BETS = np.geomspace(0.005, 0.95, 12)  # parts of the largest bet that cannot lose everything
HALVINGS = 40
EDGE = 1 - 1e-6  # of the differences that are tried


@dataclass(frozen=True)
class Tally:
    """Sessions of one lane: with the good outcome, and without."""

    good: int = 0
    bad: int = 0

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.good - other.good, self.bad - other.bad)

    @property
    def n(self) -> int:
        return self.good + self.bad

    @property
    def rate(self) -> float | None:
        return self.good / self.n if self.n else None


@dataclass(frozen=True)
class Block:
    """Scores of one step: how often each occurred, and the lowest and highest possible ones (≤ −1
    and ≥ 1).
    """

    scores: tuple[float, ...]
    counts: tuple[int, ...]
    low: float
    high: float


def canary_block(share: float, centre: float, current: Tally, candidate: Tally) -> Block | None:
    """`centre`: any number in [0, 1] chosen before the step; the nearer to the rate, the narrower
    the interval. None if everybody or nobody got the candidate: there is nothing to compare with.
    """
    if not 0 < share < 1:
        return None
    above, below = 1 - centre, -centre
    scores = (above / share, below / share, -above / (1 - share), -below / (1 - share))
    return Block(
        scores, (candidate.good, candidate.bad, current.good, current.bad), min(scores), max(scores)
    )


def paired_block(better: int, worse: int, same: int) -> Block:
    """Sessions that both answered: the candidate better, worse, or equal."""
    return Block((1.0, -1.0, 0.0), (better, worse, same), -1.0, 1.0)


def capital(blocks: Sequence[Block], m: float, *, against: str) -> float:
    """The log of what a gambler has who bets that the difference is below m (`against` "high") or
    above it ("low"), −1 < m < 1.
    """
    total = np.zeros(len(BETS))
    for block in blocks:
        room = block.high - m if against == "high" else m - block.low
        sign = -1.0 if against == "high" else 1.0
        for score, count in zip(block.scores, block.counts, strict=True):
            if count:
                total += count * np.log1p(sign * BETS * (score - m) / room)
    return float(np.logaddexp.reduce(total)) - math.log(len(BETS))


@dataclass(frozen=True)
class Bounds:
    """Bounds of the difference of the rates: values outside are refuted, each side with error
    alpha.
    """

    low: float
    high: float


def bounds(blocks: Sequence[Block | None], alpha: float) -> Bounds:
    known = [block for block in blocks if block and any(block.counts)]
    wanted = math.log(1 / alpha)
    return Bounds(_bound(known, wanted, "low"), _bound(known, wanted, "high"))


def _bound(blocks: list[Block], wanted: float, side: str) -> float:
    """By bisection: the capital increases with m on one side and decreases with it on the other."""
    edge, inside = (-EDGE, EDGE) if side == "low" else (EDGE, -EDGE)
    if not blocks or capital(blocks, edge, against=side) < wanted:
        return math.copysign(1.0, edge)
    for _ in range(HALVINGS):
        middle = (edge + inside) / 2
        if capital(blocks, middle, against=side) < wanted:
            inside = middle
        else:
            edge = middle
    return edge


def difference(pairs: Sequence[tuple[Tally, Tally]]) -> float | None:
    """Candidate − current, step by step, each step weighted by what it says (so that a rate that
    drifts while the share grows does not look like a difference). None if no step has both."""
    known = [
        (a.n * b.n / (a.n + b.n), b.good / b.n - a.good / a.n) for a, b in pairs if a.n and b.n
    ]
    weight = sum(w for w, _ in known)
    return sum(w * gap for w, gap in known) / weight if weight else None
