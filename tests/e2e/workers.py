"""What a Celery worker does, in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from apps.core import runner
from apps.core.models import Job, JobState
from tests import warm


@contextmanager
def worker(*kinds: type[Job], once: Job | None = None) -> Iterator[None]:
    """Runs what is queued, each in its child process (started warm), as a Celery worker would; or
    one attempt of `once`.
    """
    stop = threading.Event()

    def work() -> None:
        if once:
            runner.run(once)
        while not (once or stop.wait(0.2)):
            for kind in kinds:
                for job in kind.objects.filter(state=JobState.QUEUED, sends__gt=0):
                    runner.run(job)
        connections.close_all()

    thread = threading.Thread(target=work)
    with warm.jobs():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
