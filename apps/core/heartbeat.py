"""The heartbeat of a job that a worker has claimed."""

from __future__ import annotations

import logging

from django.db import DatabaseError, InterfaceError, connection

from apps.core.companion import Companion
from apps.core.models import Job

log = logging.getLogger(__name__)
BEAT_EVERY_S = 5.0


class Heartbeat(Companion):
    """Beats from a thread, on a separate connection, as long as the worker has the job.

    Writing a spec, hashing a model or one long transaction may take longer than the maximum age of
    a heartbeat; without the thread the reaper would give the job to a second worker.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(f"heartbeat of {job.pk}", BEAT_EVERY_S)
        self.job = job

    def step(self) -> None:
        try:
            self.job.beat()
        except (DatabaseError, InterfaceError) as error:
            log.warning("No heartbeat of job %s: %s", self.job.pk, error)
            connection.close()
