"""Django's connection to PostgreSQL, which is asked whether it is alive without a round trip (that
took as long as half of a small request) and does not wait for a frozen server (`watched`).
"""

from __future__ import annotations

import select
from types import SimpleNamespace

import psycopg
from django.db.backends.postgresql import base
from psycopg.pq import ConnStatus

from flywheel.postgres.watched import Connection


class DatabaseWrapper(base.DatabaseWrapper):
    Database = SimpleNamespace(**(vars(psycopg) | {"connect": Connection.connect}))

    def is_usable(self) -> bool:
        """From a connection that its server has closed there is something to read. After an error
        the server itself is asked.
        """
        if self.connection is None or self.connection.pgconn.status != ConnStatus.OK:
            return False
        socket = select.poll()
        socket.register(self.connection.pgconn.socket, select.POLLIN)
        return super().is_usable() if self.errors_occurred or socket.poll(0) else True
