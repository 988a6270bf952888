"""Two real connections: a second one runs in a thread while a test's own transaction is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import connection


class Other:
    """A call on a connection of its own. `wait` returns what the call returned, or raises what it
    raised.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=[call])
        self.thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def wait_until_it_waits(self) -> None:
        """Until a backend of this database waits for a lock of another, or the call has ended."""
        while self.thread.is_alive() and not _is_blocked():
            time.sleep(0.01)

    def wait(self, seconds: float = 300) -> Any:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the other connection did not end in time"
        if self.error is not None:
            raise self.error
        return self.result


def _is_blocked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_clear_snapshot()"
        )  # a transaction sees its first look again and again
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
            "AND cardinality(pg_blocking_pids(pid)) > 0)"
        )
        return cursor.fetchone()[0]
