"""Waiting for a database that is away, for a bounded time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import close_old_connections

from flywheel.outages import is_transient

log = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE_S = 180.0


class Patience:
    """Counts from the first failure since the last `reset`."""

    def __init__(self) -> None:
        self.until: float | None = None

    def reset(self) -> None:
        self.until = None

    def wait(self, error: BaseException) -> None:
        """Waits before the next try. Raises `error` again if retrying cannot help, or after too
        many tries.
        """
        now = time.monotonic()
        self.until = self.until or now + PATIENCE_S
        if not is_transient(error) or now > self.until:
            raise error
        log.warning("The database is unreachable; trying again: %s", error)
        time.sleep(1)
        close_old_connections()


def patiently(write: Callable[[], T]) -> T:
    """Repeats a write that the absence of the database interrupts: one that may be done twice."""
    patience = Patience()
    while True:
        try:
            return write()
        except Exception as error:
            patience.wait(error)
