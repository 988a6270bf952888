"""Tasks that are sent whenever there is something to do, and would be sent far too often."""

from __future__ import annotations

import logging
import threading
import time

from celery import current_app
from kombu.exceptions import OperationalError as BrokerError

log = logging.getLogger(__name__)


class Waker:
    """Sends a task when called, at most once in `every_s` and process. Beat sends it too: a lost message loses nothing.

    `every_s` is shorter than the task lingers, so what arrives between two calls is seen. `waits` says what a broker that is away delays.
    """

    def __init__(self, task: str, *, expires_s: float, every_s: float, waits: str) -> None:
        self.task, self.expires_s, self.every_s, self.waits = task, expires_s, every_s, waits
        self._lock, self._sent_at = threading.Lock(), 0.0

    def __call__(self) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._sent_at < self.every_s:
                return
            self._sent_at = now
        try:
            current_app.send_task(self.task, retry=False, expires=self.expires_s)
        except (BrokerError, OSError) as error:
            log.warning("%s for the broker: %s", self.waits, error)
