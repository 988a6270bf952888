"""Keeps the endpoint's table up to date: after every change that the database announces, and every
few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import connection, connections

from apps.serving.routes import Table, read_table
from flywheel.outages import is_away
from flywheel.postgres.direct import direct

log = logging.getLogger(__name__)
CHANNEL = "flywheel_routes"  # the channel of the migration's triggers
EVERY_S = 3.0
AGAIN_S = (
    1.0  # seconds before a retry if the database is down, and between two reads for unknown names
)


class Tables:
    """The newest table, written by one thread and read by all. `known` is False until the database
    has answered once.
    """

    def __init__(self, read: Callable[[], Table] = read_table) -> None:
        self.read, self.current, self.known = read, Table(), False
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="routes")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def refresh(self) -> Table:
        """Read the table, in a thread that may block. Raises database errors."""
        with self._lock:
            self.current, self.known = self.read(), True
        return self.current

    def refresh_for_unknown(self) -> Table:
        """Read the table again for a key or channel that is not in it but may be new; at most once
        per second, however many requests need it.
        """
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
                connections.close_all()
                self._stop.wait(AGAIN_S)
        connections.close_all()

    def _listen(self) -> None:
        """Listen until the connection is lost. It listens before it reads the table, so that no
        change is missed in between.
        """
        with direct().cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        while not self._stop.is_set():
            self.refresh()
            for _ in direct().connection.notifies(timeout=EVERY_S, stop_after=1):
                pass
