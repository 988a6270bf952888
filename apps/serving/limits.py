"""Limits of one key: requests and tokens per minute, concurrent answers. Pure.

Each process of the endpoint counts separately: a shared count would cost a request more time than
the endpoint may add. If several run (FLYWHEEL_ENDPOINT_PROCESSES), each allows its part, so that
together they allow the configured limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUTE_S = 60.0


@dataclass(frozen=True)
class Limits:
    """0 is no limit."""

    requests: int = 0
    tokens: int = 0
    at_once: int = 0

    def part(self, processes: int) -> Limits:
        """The part that one of several processes allows: at least 1 of anything that is limited."""
        return Limits(
            *(
                max(1, most // processes) if most else 0
                for most in (self.requests, self.tokens, self.at_once)
            )
        )


class Exceeded(Exception):
    """The limit that was reached, as a sentence, and the seconds after which a retry may
    succeed.
    """

    def __init__(self, sentence: str, wait_s: float) -> None:
        super().__init__(sentence)
        self.wait_s = max(1, math.ceil(wait_s))


class _Bucket:
    """Holds a minute's worth and is refilled continuously. It may be overdrawn: the cost of an
    answer is known at its end.
    """

    def __init__(self, most: int, now: float) -> None:
        self.most, self.level, self.at = most, float(most), now

    def refill(self, most: int, now: float) -> None:
        if most != self.most:
            # What was used under another limit counts for at most a minute; while there is no
            # limit, nothing is counted.
            self.level = max(self.level + most - self.most, -most) if self.most else most
            self.most = most
        self.level = min(self.most, self.level + (now - self.at) * self.most / MINUTE_S)
        self.at = now

    def wait_for(self, amount: float) -> float:
        """Seconds until that much is available; 0 if it is."""
        return max(0.0, (amount - self.level) * MINUTE_S / self.most)


class Meter:
    """What one key has used lately. `begin` before an answer, `end` after it, always both."""

    def __init__(self, now: float) -> None:
        self.open = 0
        self.requests, self.tokens = _Bucket(0, now), _Bucket(0, now)

    def begin(self, limits: Limits, now: float) -> None:
        """Raises Exceeded, and counts nothing then."""
        self.requests.refill(limits.requests, now)
        self.tokens.refill(limits.tokens, now)
        if limits.at_once and self.open >= limits.at_once:
            raise Exceeded(
                f"This API key has {self.open} answers open at a time, which is its limit.", 1
            )
        if limits.requests and (wait := self.requests.wait_for(1)):
            raise Exceeded(f"This API key may send {limits.requests} requests per minute.", wait)
        if limits.tokens and (wait := self.tokens.wait_for(1)):
            raise Exceeded(f"This API key may use {limits.tokens} tokens per minute.", wait)
        self.requests.level -= 1
        self.open += 1

    def end(self, tokens: int) -> None:
        self.open -= 1
        self.tokens.level -= tokens

    def headers(self, limits: Limits) -> list[tuple[bytes, bytes]]:
        """What is left, in the headers of OpenAI's API."""
        found = []
        for name, most, bucket in (
            ("requests", limits.requests, self.requests),
            ("tokens", limits.tokens, self.tokens),
        ):
            if most:
                found.append((f"x-ratelimit-limit-{name}".encode(), str(most).encode()))
                left = max(0, math.floor(bucket.level))
                found.append((f"x-ratelimit-remaining-{name}".encode(), str(left).encode()))
        return found
