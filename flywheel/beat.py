"""Celery's beat, where the machine's clock is set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django_celery_beat.schedulers import DatabaseScheduler

NEVER = datetime.fromtimestamp(0, UTC)
SLACK = timedelta(seconds=1)


class Scheduler(DatabaseScheduler):
    """What was last sent in the future, by a clock that has been set back since, is due at once.
    Celery would wait until the clock is there again: hours in which nothing is scheduled.
    """

    def tick(self, *args: Any, **kwargs: Any) -> float:
        soon = datetime.now(UTC) + SLACK
        for entry in (self._schedule or {}).values():
            if entry.model.last_run_at > soon:  # the heap has a newer entry of the same model
                entry.last_run_at = entry.model.last_run_at = NEVER
                self._dirty.add(entry.name)
                self._heap = None  # is made again by what follows
        return super().tick(*args, **kwargs)
