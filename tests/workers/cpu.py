"""A limit in processor time: what runs longer than it may ends in an error, however busy the
machine is.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 2.0  # usual are milliseconds; what comes back to the same text again and again takes more


class TooLong(BaseException):
    """Not an Exception: nothing that guards itself against those may swallow it."""


@contextmanager
def processor_time(seconds: float = LIMIT_S) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
