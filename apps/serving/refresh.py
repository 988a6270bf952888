"""Keeps the endpoint's table up to date: after each change that the database announces, and every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import connection

from apps.serving.routes import Table, read_table
from flywheel.outages import is_away

log = logging.getLogger(__name__)
CHANNEL = "flywheel_routes"  # the channel of the migration's triggers
EVERY_S = 3.0
AGAIN_S = 1.0  # after the database did not answer, and between two reads for an unknown name


class Tables:
    """The newest table, read by one thread and seen by all. `known` is False until the database has answered once."""

    def __init__(self, read: Callable[[], Table] = read_table) -> None:
        self.read, self.current, self.known = read, Table(), False
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="routes")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def refresh(self) -> Table:
        """In a thread that may wait. Raises database errors."""
        with self._lock:
            self.current, self.known = self.read(), True
        return self.current

    def refresh_for_unknown(self) -> Table:
        """For a key or a channel that is not in the table and may be new; not more than once in a second, however many ask."""
        asked = time.monotonic()
        with self._lock:
            if self.current.at < asked - AGAIN_S:
                try:
                    self.current, self.known = self.read(), True
                except Exception as error:
                    log.warning("The table is not read again: %s", error)
                finally:
                    connection.close()
        return self.current

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except Exception as error:
                if not is_away(error):
                    log.exception("The table is not read")
                else:
                    log.warning("The table stays unchanged: %s", " ".join(str(error).split()))
                connection.close()
                self._stop.wait(AGAIN_S)
        connection.close()

    def _listen(self) -> None:
        """Until the database goes away. It listens before it reads, so that no change falls in between."""
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        while not self._stop.is_set():
            self.refresh()
            for _ in connection.connection.notifies(timeout=EVERY_S, stop_after=1):
                pass
