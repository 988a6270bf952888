"""Messages to workers. They leave in a thread of their own, so that no request waits for the
broker.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from kombu.exceptions import OperationalError as BrokerError

from flywheel import telemetry
from flywheel.celery import app as current_app

log = logging.getLogger(__name__)
BROKER_AWAY = (BrokerError, OSError)
MOST_WAITING = 10_000
LONGEST_PAUSE_S = 15.0
EXIT_PATIENCE_S = 3.0  # how long a command that ends waits for its messages to leave


@dataclass(frozen=True)
class Message:
    """A task to send. `args` are ids. It is worthless `expires_s` after it was posted."""

    task: str
    args: tuple[Any, ...]
    queue: str | None
    expires_at: float  # time.monotonic()
    headers: dict[str, str] = field(default_factory=dict)  # whose request or job posted it


def post(task: str, *args: Any, expires_s: float, queue: str | None = None) -> None:
    """Has a worker run a task soon. Returns at once, whatever the broker does.

    A message is sent until it expires or this process ends, so what must not be lost is also found
    by a periodic task.
    """
    _outbox.add(Message(task, args, queue, time.monotonic() + expires_s, telemetry.carried()))


def deliver(message: Message) -> None:
    """Waits for the broker. Raises one of BROKER_AWAY."""
    remaining = message.expires_at - time.monotonic()
    if remaining > 0:
        current_app.send_task(
            message.task,
            args=list(message.args),
            queue=message.queue,
            retry=False,
            expires=remaining,
            headers=message.headers,
        )


class Outbox:
    """Messages that wait for the broker, the oldest first. Two with the same task and arguments are
    one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[Any, ...], Message] = {}
        self._sending = False
        self._thread: threading.Thread | None = None

    def add(self, message: Message) -> None:
        key = (message.task, message.args)
        with self._changed:
            if key not in self._waiting and len(self._waiting) >= MOST_WAITING:
                return
            self._waiting[key] = message
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, patience_s: float) -> bool:
        """Whether all has left within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._sending), patience_s)

    def _run(self) -> None:
        pause = 0.0
        while True:
            time.sleep(pause)
            message = self._take()
            try:
                deliver(message)
                pause = 0.0
            except BROKER_AWAY as error:
                log.warning("%s waits for the broker: %s", message.task, error)
                pause = min(LONGEST_PAUSE_S, 2 * pause + 1)
                self._put_back(message)
            except Exception:
                log.exception("%s cannot be sent", message.task)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _take(self) -> Message:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting))
            self._sending = True
            return self._waiting.pop(next(iter(self._waiting)))

    def _put_back(self, message: Message) -> None:
        if message.expires_at > time.monotonic():
            with self._changed:
                self._waiting.setdefault((message.task, message.args), message)


_outbox = Outbox()


def _begin_anew() -> None:
    """A forked process has no thread of its parent; what waits there is sent there."""
    global _outbox
    _outbox = Outbox()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(lambda: _outbox.flush(EXIT_PATIENCE_S))
