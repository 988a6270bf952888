"""The heartbeat of a job that a worker has claimed."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from django.db import DatabaseError, InterfaceError, connection

from apps.core.models import Job

log = logging.getLogger(__name__)
BEAT_EVERY_S = 5.0


class Heartbeat:
    """Beats from a thread, on a separate connection, as long as the worker has the job.

    Writing a spec, hashing a model or one long transaction may take longer than the maximum age of
    a heartbeat; without the thread the reaper would give the job to a second worker.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.over = job, threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"heartbeat of {job.pk}", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self.over.set()
        self.thread.join()

    def _run(self) -> None:
        try:
            while not self.over.wait(BEAT_EVERY_S):
                self._beat()
        finally:
            connection.close()

    def _beat(self) -> None:
        try:
            self.job.beat()
        except (DatabaseError, InterfaceError) as error:
            log.warning("No heartbeat of job %s: %s", self.job.pk, error)
            connection.close()
