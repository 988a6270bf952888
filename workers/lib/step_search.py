"""Finds the step of a failed run whose correction would have changed the end, from the outcomes of
continuations. Pure.

The value of a step is the chance that the policy succeeds if everything before the step is kept and
the policy decides from there on (a Monte-Carlo value as in Math-Shepherd, Wang et al. 2024). The
end of the failed run has the value 0. The *decisive* step is the last one whose value is at least
half of the best: decided anew there, the run could still succeed, and after what was recorded there
it could no longer. Where values only fall, that is the earliest mistake whose correction changes
the end (the decisive error of Zhang et al. 2025, “Who&When”); where a value recovers, the earlier
mistake was repaired.

With few steps all are tried. Otherwise halving (as OmegaPRM does for proofs, Luo et al. 2024)
begins with the first step, and keeps a step that is at or above the level and a later one that is
below it, so it always ends at a place where the level is crossed, also where values do not fall
steadily. Then both sides of that place are tried again as often, and if that changes a side,
halving continues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEW = 4  # steps, of which all are tried
LEVEL = 0.5  # of the best value


@dataclass(frozen=True)
class Tried:
    """`n` continuations from a step were scored, and `masked` were not."""

    successes: int = 0
    n: int = 0
    masked: int = 0

    @property
    def attempts(self) -> int:
        return self.n + self.masked

    @property
    def share(self) -> float:
        return self.successes / self.n if self.n else 0.0


@dataclass(frozen=True)
class Wanted:
    """The next continuations to run."""

    step: int
    n: int


@dataclass(frozen=True)
class Found:
    """The decisive step, and the next step that was tried; None: the end of the run, whose value is
    known to be 0.
    """

    step: int
    after: int | None


def next_try(
    steps: Sequence[int], tried: Mapping[int, Tried], each: int, *, every: bool = False
) -> Wanted | None:
    """What to run next; None if nothing is left to find out. It depends on the counts alone, so a
    search that was interrupted continues where it was. A step of which no continuation could be
    scored is left out.
    """
    usable = [step for step in steps if _missing(step, tried, each) or tried[step].n]
    all_of_them = every or len(steps) <= FEW
    begun = [step for step in usable if step in tried]
    for step in [*begun, *(usable if all_of_them else usable[:1])]:
        if wanted := _missing(step, tried, each):
            return wanted
    if not any(tried[step].successes for step in usable if step in tried):
        return None
    low, high = _bracket(usable, tried)
    if high - low > 1:
        return _missing(usable[(low + high) // 2], tried, each)
    sides = (_missing(usable[at], tried, 2 * each) for at in (low, high) if at < len(usable))
    return next(filter(None, sides), None)


def found(steps: Sequence[int], tried: Mapping[int, Tried]) -> Found | None:
    """The decisive step as far as it is known; None if no continuation succeeded."""
    known = [step for step in steps if step in tried and tried[step].n]
    if not any(tried[step].successes for step in known):
        return None
    low, high = _bracket(known, tried)
    return Found(known[low], known[high] if high < len(known) else None)


def most_tries(steps: int, each: int, *, every: bool = False) -> int:
    """The number of continuations, unless trying both sides again changes one of them."""
    if every or steps <= FEW:
        return each * (steps + min(2, steps))
    return each * (1 + math.ceil(math.log2(steps)) + 2)


def _missing(step: int, tried: Mapping[int, Tried], wanted: int) -> Wanted | None:
    left = wanted - tried.get(step, Tried()).attempts
    return Wanted(step, left) if left > 0 else None


def _bracket(steps: Sequence[int], tried: Mapping[int, Tried]) -> tuple[int, int]:
    """(the last tried step at or above the level, the next tried one) as positions; the end of the
    run is after the last step.
    """
    known = [at for at, step in enumerate(steps) if step in tried and tried[step].n]
    level = LEVEL * max(tried[steps[at]].share for at in known)
    low = max(at for at in known if tried[steps[at]].share >= level)
    return low, next((at for at in known if at > low), len(steps))
