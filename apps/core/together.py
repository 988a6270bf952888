"""Group commit: what concurrent requests of a process bring is stored in one transaction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from django.db import OperationalError

from flywheel.outages import is_transient

Item = TypeVar("Item")


class _Entry(Generic[Item]):
    __slots__ = ("error", "is_done", "item")

    def __init__(self, item: Item) -> None:
        self.item, self.is_done = item, False
        self.error: Exception | None = OperationalError("Interrupted before it was stored.")


class Together(Generic[Item]):
    """Does with one call what gathered while the call before was under way. Nobody waits for others
    to come, so a single item costs what it would alone.

    `work` does all or nothing of its items, which are in the order in which they came.
    """

    def __init__(self, work: Callable[[Sequence[Item]], None]) -> None:
        self._work = work
        self._waiting: deque[_Entry[Item]] = deque()
        self._turn = threading.Lock()

    def do(self, item: Item) -> None:
        """Returns when it is done. Raises what `work` raises of this item alone, or of an outage
        for all.
        """
        entry = _Entry(item)
        self._waiting.append(entry)
        with self._turn:
            if not entry.is_done:
                self._do_all([self._waiting.popleft() for _ in range(len(self._waiting))])
        if entry.error is not None:
            raise entry.error

    def _do_all(self, entries: list[_Entry[Item]]) -> None:
        failure: Exception | None = None
        try:
            self._work([entry.item for entry in entries])
        except Exception as error:
            if len(entries) > 1 and not is_transient(error):
                for entry in entries:
                    self._do_all([entry])
                return
            failure = error
        for entry in entries:
            entry.error, entry.is_done = failure, True
