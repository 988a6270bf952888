"""Who asks for the sandbox in a process that serves many: how long each may wait, run, and how much of it one may have.

A job has a process of its own and waits as long as it takes; there is no visit then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

WAIT_S, RUN_S = 5.0, 60.0
RETRY_AFTER_S = 5


class Busy(Exception):
    """No run could begin in time. It says nothing about the code that was to run: ask again."""


class Refused(BaseException):
    """Busy, on its way out through verifiers and graders: as no Exception it is not mistaken for a fault of theirs."""


@dataclass
class Visit:
    """One request of `owner`: seconds that it may wait for each run, and that all its runs may take together."""

    owner: str
    wait: float
    seconds: float


_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


def current() -> Visit | None:
    return _current.get()


@contextmanager
def visiting(owner: str, *, wait: float = WAIT_S, seconds: float = RUN_S) -> Iterator[None]:
    """All runs inside are of this owner. Raises Busy if one could not begin."""
    token = _current.set(Visit(owner, wait, seconds))
    try:
        yield
    except Refused as refused:
        raise Busy(str(refused)) from None
    finally:
        _current.reset(token)
