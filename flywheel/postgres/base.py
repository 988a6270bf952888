"""Django's connection to PostgreSQL, which is asked whether it is alive without a round trip (that
took as long as half of a small request) and does not wait for a frozen server (`watched`).
"""

from __future__ import annotations

import select
from types import SimpleNamespace
from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg.pq import ConnStatus

from flywheel.postgres.direct import is_pooled
from flywheel.postgres.watched import Connection


class DatabaseWrapper(base.DatabaseWrapper):
    Database = SimpleNamespace(**(vars(psycopg) | {"connect": Connection.connect}))

    def chunked_cursor(self) -> Any:
        """Behind a pooler a server's cursor lives as long as its transaction: outside of one the
        rows come at once.
        """
        outside = not self.in_atomic_block and self.settings_dict.get("AUTOCOMMIT", True)
        return self.cursor() if is_pooled() and outside else super().chunked_cursor()

    def is_usable(self) -> bool:
        """From a connection that its server has closed there is something to read. After an error
        the server itself is asked.
        """
        if self.connection is None or self.connection.pgconn.status != ConnStatus.OK:
            return False
        socket = select.poll()
        socket.register(self.connection.pgconn.socket, select.POLLIN)
        return super().is_usable() if self.errors_occurred or socket.poll(0) else True
