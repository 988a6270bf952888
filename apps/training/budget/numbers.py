"""Uncertain numbers: low, likely, high. Pure."""

from __future__ import annotations

from msgspec import Struct


class Span(Struct, frozen=True):
    low: float
    likely: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.likely * factor, self.high * factor)

    def wider(self, below: float, above: float) -> Span:
        return Span(self.low * below, self.likely, self.high * above)

    @property
    def exact(self) -> bool:
        return self.low == self.high
