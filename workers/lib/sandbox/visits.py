"""Who uses the sandbox in a process that serves many users: how long each may wait and run, and how
many slots one user may have.

A job has its own process and waits as long as it takes, so there is no visit then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

WAIT_S, RUN_S = 5.0, 60.0
RETRY_AFTER_S = 5


class Busy(Exception):
    """No run could begin in time. This says nothing about the code: try again."""


class Refused(BaseException):
    """Busy, on its way out through verifiers and graders. It is not an Exception, so that it is not
    mistaken for their own error.
    """


@dataclass
class Visit:
    """One request by `owner`: the seconds it may wait for each run, and the seconds that all its
    runs may use together.
    """

    owner: str
    wait: float
    seconds: float


_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


def current() -> Visit | None:
    return _current.get()


@contextmanager
def visiting(owner: str, *, wait: float = WAIT_S, seconds: float = RUN_S) -> Iterator[None]:
    """All runs inside the block belong to this owner. Raises Busy if one could not begin."""
    token = _current.set(Visit(owner, wait, seconds))
    try:
        yield
    except Refused as refused:
        raise Busy(str(refused)) from None
    finally:
        _current.reset(token)
