"""A database that has stopped answering (a frozen server, a cut network) makes nobody wait longer
than a second (FLYWHEEL_DATABASE_SILENT_S): connections raise OperationalError, as for one that is
away.

A slow query is not that. Who has waited for a while asks whether the server still answers anybody:
other threads of the process, or a probe with a connection of its own. Only processes that answer
requests watch (`watch.begin`); workers may wait.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Generator
from typing import Any, Self

import psycopg
from psycopg import errors

SILENT_S = 0.8  # without an answer to anybody: FLYWHEEL_DATABASE_SILENT_S
WAITED_S = 0.3  # for an answer, before somebody asks whether the server still gives any
TICK_S = 0.02
CONNECT_TICK_S = 0.1  # after which psycopg looks again
RENEW_S = 5.0  # without an answer, after which the probe takes a new connection
AGAIN_S = 0.2
WATCH = "flywheel-watch"  # the application of the probe of each web process
FROZEN = "The database server does not answer"


class Watch:
    """Of one process. `frozen_since`: the time (`time.time`) since when nothing was answered."""

    def __init__(self) -> None:
        self.is_on, self.silent_s = False, SILENT_S
        self.frozen_since: float | None = None
        self._answers = 0
        self._asked = threading.Event()
        self._parameters: dict[str, Any] = {}

    def begin(self, parameters: dict[str, Any], silent_s: float = SILENT_S) -> None:
        """`parameters`: of a connection. `silent_s`: after how long without any answer the server
        is taken to be frozen.
        """
        self._parameters = parameters | {"connect_timeout": 2, "application_name": WATCH}
        self.silent_s = silent_s
        self.is_on = True
        self._asked.set()  # its connection stands before it is needed
        threading.Thread(target=self._probe, name="database watch", daemon=True).start()

    def note_answer(self) -> None:
        """Unlocked: a count that is lost is followed by others."""
        self._answers += 1
        self.frozen_since = None

    def is_frozen(self) -> bool:
        """Whether nobody is answered. Waits for an answer to the probe.

        What counts is how often this thread was woken, not the clock: on a machine that is too busy
        to wake it, the server has not had its time to answer either.
        """
        if self.frozen_since is not None:
            return True
        before, ticks = self._answers, round((self.silent_s - WAITED_S) / TICK_S)
        self._asked.set()
        for _ in range(ticks):
            if self._answers != before:
                return False
            time.sleep(TICK_S)
        if self._answers != before:
            return False
        self.frozen_since = self.frozen_since or time.time() - self.silent_s
        self._asked.set()  # the probe may have found no answer before, and wait to be asked
        return True

    def require_answers(self) -> None:
        """Raises OperationalError while the server is known to be frozen."""
        if self.frozen_since is not None:
            raise psycopg.OperationalError(FROZEN)

    def _probe(self) -> None:
        connection: _Probe | None = None
        while True:
            if self.frozen_since is None:
                self._asked.wait()
            else:
                time.sleep(AGAIN_S)
            self._asked.clear()
            try:
                connection = connection or _Probe.connect(**self._parameters, autocommit=True)
                connection.execute("SELECT 1")
            except (errors._WaitTimeout, errors.ConnectionTimeout):
                connection = connection and connection.close()  # type: ignore[func-returns-value]
                continue
            except psycopg.Error:  # an answer, too: that it starts, or has no connection left
                connection = connection and connection.close()  # type: ignore[func-returns-value]
            self.note_answer()


def _let_go(error: BaseException) -> None:
    """Closes the socket of the connection that could not be made. The frames of the error have it,
    and refer to the error: until garbage is collected it would be a connection of a server that
    was frozen and is back.
    """
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__context__


class _LetsGo(psycopg.Connection[Any]):
    @classmethod
    def connect(cls, *given: Any, **options: Any) -> Self:
        try:
            return super().connect(*given, **options)
        except psycopg.Error as error:
            _let_go(error)
            raise


class _Probe(_LetsGo):
    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, RENEW_S)


class Connection(_LetsGo):
    """Where the process watches: gives up when the server is frozen, and is closed then."""

    @classmethod
    def connect(cls, *given: Any, **options: Any) -> Self:
        if watch.is_on:
            watch.require_answers()
        connection = super().connect(*given, **options)
        watch.note_answer()
        return connection

    @classmethod
    def _connect_gen(cls, *given: Any, **options: Any) -> Generator[Any, Any, Any]:
        """psycopg resumes it every tenth of a second."""
        steps = super()._connect_gen(*given, **options)
        if not watch.is_on:
            return (yield from steps)
        ticks, ready = round(watch.silent_s / CONNECT_TICK_S), None
        while True:
            try:
                wanted = steps.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            ticks -= not ready
            if ticks < 0:
                raise errors.ConnectionTimeout(FROZEN)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if not watch.is_on or timeout is not None:
            return super().wait(gen, interval, timeout)
        if watch.frozen_since is None:
            while True:
                try:
                    answer = super().wait(gen, interval, WAITED_S)
                except errors._WaitTimeout:
                    if watch.is_frozen():
                        break
                else:
                    watch.note_answer()
                    return answer
        self.close()
        raise psycopg.OperationalError(FROZEN)


watch = Watch()
