"""A thread beside a longer piece of work."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from django.db import connection


class Companion:
    """Does `step` every so many seconds from a thread, on a separate connection, as long as it is
    entered. `over` is set when that ends.
    """

    def __init__(self, name: str, every_s: float, *, leave_after_s: float | None = None) -> None:
        """`leave_after_s`: how long its end is waited for, where a step may hang."""
        self.every_s, self.leave_after_s = every_s, leave_after_s
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join(timeout=self.leave_after_s)

    def _run(self) -> None:
        try:
            while not self.over.wait(self.every_s):
                self.step()
            self.last()
        finally:
            connection.close()

    def step(self) -> None:
        raise NotImplementedError

    def last(self) -> None:
        """Once more, when it is over."""
