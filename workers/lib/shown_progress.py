"""Progress events for quick work: at most a few a second. Light: no torch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from workers.lib.events import Emitter

Item = TypeVar("Item")
SHOWN_EVERY_S = 0.2  # a thousand samples a second need no thousand lines


class ShownProgress:
    """Shows what a run does within a step; the number of finished steps does not change."""

    def __init__(self, events: Emitter, total: int) -> None:
        self.events, self.total, self.shown_at, self.result = events, total, 0.0, ""

    def show(self, done: int, label: str) -> None:
        self.shown_at = time.monotonic()
        self.events.progress(
            done, self.total, f"{label} (last step: {self.result})" if self.result else label
        )

    def finished(self, done: int, result: str = "") -> None:
        """Show the result of a step, which stays beside what follows; without one, that of the last
        step.
        """
        self.result = result or self.result
        if self.result:
            self.events.progress(done, self.total, self.result)

    def count(self, done: int, doing: str, n: int, of: int) -> None:
        """“sampling 3 of 32”; not all, but the first and the last."""
        if n in (0, of) or time.monotonic() - self.shown_at >= SHOWN_EVERY_S:
            self.show(done, f"{doing} {n:,} of {of:,}")

    def each(self, done: int, doing: str, items: Sequence[Item]) -> Iterator[Item]:
        """The items, counted as they are used."""
        for n, item in enumerate(items, 1):
            yield item
            self.count(done, doing, n, len(items))
