"""Has a rate risen above a limit? A test that may be looked at after every observation. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RATES = (1.5, 2.0, 3.0, 5.0, 7.5)  # multiples of the limit that are bet on


@dataclass(frozen=True)
class Evidence:
    """That a rate is above a limit: the highest value that the detector reached, and from which
    observation on it speaks for that (an index).
    """

    value: float = 0.0
    since: int = 0


def above(limit: float, observed: Iterable[tuple[bool, float]]) -> Evidence:
    """An e-detector of Shiryaev–Roberts type (Shin, Ramdas and Rinaldo 2024): from each observation
    on, a bet is placed that the rate is above the limit, and the capital of all bets is added up.
    While the rate is at most the limit, on average at least C observations pass before the sum
    reaches C, whenever one looks; a change is noticed as fast after many good observations as after
    few.

    `observed` are (hit, weight), the oldest first. A weight, in (0, 1], is proportional to the
    inverse of the observation's sampling probability (Waudby-Smith and Ramdas 2024: the capital is
    multiplied by 1 + bet · weight · (hit − limit)). The bets' sizes are optimal for `RATES` times
    the limit; they share the capital.
    """
    bets = [(times - 1) / (1 - limit) for times in RATES if times * limit < 1]
    capital, best, start = [0.0] * len(bets), [1.0] * len(bets), [0] * len(bets)
    found = Evidence()
    for at, (hit, weight) in enumerate(observed):
        for number, bet in enumerate(bets):
            factor = 1 + bet * weight * (hit - limit)
            capital[number] = (capital[number] + 1) * factor
            if best[number] <= 1:
                best[number], start[number] = 1.0, at
            best[number] *= factor
        value = sum(capital) / len(bets)
        if value > found.value:
            strongest = max(range(len(bets)), key=capital.__getitem__)
            found = Evidence(value, start[strongest])
    return found
