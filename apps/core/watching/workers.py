"""Each process that takes tasks says every few seconds that it does (`Worker`): whether the broker
answers or not, so that a frozen process is told from a frozen broker.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from django.db.models.functions import Now
from django.utils import timezone

from apps.core import job_files, kept, placing
from apps.core.bus import Event, ask, publish
from apps.core.data_folder import identity
from apps.core.models import Worker
from apps.core.watching import machines
from flywheel import alive, processes
from flywheel.version import VERSION
from workers.lib.sandbox.server import strength_here

log = logging.getLogger(__name__)
BEAT_EVERY_S = 5.0
LOOK_AROUND_EVERY_S = 120.0


class MachineTidied(Event):
    """What was deleted on another machine has been removed from this one: by each of its workers,
    when it starts and every two minutes.
    """


class Presence:
    """Of the consumers of this process. `consumers` are Celery's, by name."""

    def __init__(self) -> None:
        self.consumers: dict[str, Any] = {}
        self._drained: set[str] = set()
        self._has: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()

    def join(self, consumer: Any) -> None:
        self.consumers[consumer.hostname] = consumer
        self._drained.discard(consumer.hostname)
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
            self._thread.start()
            threading.Thread(target=self._look_around, name="inventory", daemon=True).start()
        own = placing.own_queue(alive.queue_of(consumer.hostname), socket.gethostname())
        consumer.call_soon(consumer.add_task_queue, own)

    def leave(self) -> None:
        """Removes the rows of this process, which stops in order."""
        names = list(self.consumers)
        self.consumers.clear()
        try:
            Worker.objects.filter(
                name__in=names, host=socket.gethostname(), pid=os.getpid()
            ).delete()
        except (DatabaseError, InterfaceError) as error:
            log.warning("Workers could not be signed off: %s", error)

    def _run(self) -> None:
        while True:
            self._changed.wait(BEAT_EVERY_S)
            self._changed.clear()
            try:
                close_old_connections()
                self.beat()
            except (DatabaseError, InterfaceError) as error:
                log.warning("No heartbeat of this worker: %s", error)
                connection.close()

    def _look_around(self) -> None:
        """What this machine has: to look may take as long as to read the weights of a model."""
        while True:
            try:
                close_old_connections()
                computes = {alive.queue_of(name) for name in self.consumers} & {*processes.LIGHT}
                things = set().union(*ask(placing.Has())) if computes else set()
                sandbox = {"sandbox": asdict(strength_here())} if computes else {}
                self._has = placing.machine(things) | {"common": machines.common()} | sandbox
                self._has["data_folder"] = identity()
                self._changed.set()
                self._tidy()
            except Exception:  # thread boundary
                log.exception("What this machine has is not known")
                connection.close()
            time.sleep(LOOK_AROUND_EVERY_S)

    def _tidy(self) -> None:
        """What this machine has of jobs and files that were deleted on another."""
        job_files.tidy()
        kept.tidy_copies()
        publish(MachineTidied())

    def beat(self) -> None:
        skew = clock_skew()
        for name, consumer in [*self.consumers.items()]:
            drained = _beat(name, at_once=consumer.pool.limit, skew=skew, has=self._has)
            if drained != (name in self._drained):
                self._drain(consumer, drained)

    def _drain(self, consumer: Any, drained: bool) -> None:
        """It takes nothing more from its queue; what it does it ends."""
        queue = alive.queue_of(consumer.hostname)
        act = consumer.cancel_task_queue if drained else consumer.add_task_queue
        for each in (queue, placing.own_queue(queue, socket.gethostname())):
            consumer.call_soon(act, each)
        (self._drained.add if drained else self._drained.discard)(consumer.hostname)


def _beat(name: str, *, at_once: int, skew: float, has: dict[str, Any]) -> bool:
    """Whether the worker should take nothing more."""
    known: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    seen = {"beat_at": Now(), "memory_mb": memory_mb(), "skew_s": skew}
    seen |= {"at_once": at_once, "has": has}
    if not Worker.objects.filter(name=name, **known).update(**seen):
        new = (
            known | seen | {"queue": alive.queue_of(name), "started_at": Now(), "version": VERSION}
        )
        Worker.objects.update_or_create(name=name, defaults=new)
    return Worker.objects.filter(name=name).values_list("drained_at", flat=True).first() is not None


def clock_skew() -> float:
    """Seconds by which this machine's clock is ahead of the database's."""
    before = time.time()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (theirs,) = cursor.fetchone()
    return round((before + time.time()) / 2 - theirs.timestamp(), 2)


def memory_mb() -> int:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def drain(worker: Worker, drained: bool) -> None:
    Worker.objects.filter(pk=worker.pk).update(drained_at=timezone.now() if drained else None)


presence = Presence()


def _begin_again() -> None:
    """A forked process has no thread of its parent."""
    global presence
    presence = Presence()


os.register_at_fork(after_in_child=_begin_again)
