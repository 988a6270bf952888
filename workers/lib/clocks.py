"""How long an episode's agent, or its tools, may still take. Light: only the standard library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class Overtime(Exception):
    """A time limit is used up."""


class Clock:
    """The seconds that one side of an episode has left; 0 is no limit."""

    def __init__(self, seconds: float = 0) -> None:
        self.left = seconds or None
        self._limit: asyncio.Timeout | None = None
        self._since = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises Overtime."""
        token = _running.set(self)
        try:
            async with asyncio.timeout(self.left) as self._limit:
                self._since = asyncio.get_running_loop().time()
                yield
                self._count()
        except TimeoutError:
            if self._limit is not None and self._limit.expired():
                raise Overtime from None
            raise
        finally:
            self._limit = None
            _running.reset(token)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time inside does not count."""
        if self._limit is None or self.left is None or self._limit.expired():
            yield
            return
        self._count()
        self._limit.reschedule(None)
        try:
            yield
        finally:
            self._since = asyncio.get_running_loop().time()
            if self._limit is not None:  # it may have ended meanwhile
                self._limit.reschedule(self._since + self.left)

    def spend(self, seconds: float) -> None:
        """Counts time that has passed while the clock was stopped."""
        if self.left is not None:
            self.left = max(0.0, self.left - seconds)

    def _count(self) -> None:
        self.spend(asyncio.get_running_loop().time() - self._since)


_running: ContextVar[Clock | None] = ContextVar("running_clock", default=None)


def current() -> Clock:
    """The clock that is running; outside of an episode one without a limit."""
    return _running.get() or Clock()
