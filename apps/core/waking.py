"""Tasks that are sent whenever there is something to do, and would be sent far too often."""

from __future__ import annotations

import threading
import time

from apps.core import outbox


class Waker:
    """Sends a task when called, at most once in `every_s` and process. Beat sends it too: a lost
    message loses nothing.

    `every_s` is shorter than the task lingers, so what arrives between two calls is seen.
    """

    def __init__(self, task: str, *, expires_s: float, every_s: float) -> None:
        self.task, self.expires_s, self.every_s = task, expires_s, every_s
        self._lock, self._sent_at = threading.Lock(), -every_s

    def __call__(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._sent_at < self.every_s:
                return
            self._sent_at = now
        outbox.post(self.task, expires_s=self.expires_s)
