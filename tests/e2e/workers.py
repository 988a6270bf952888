"""What a Celery worker does, in a thread of the test."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from django.db import connections

from apps.core import child, runner
from apps.core.models import Job, JobState
from tests import warm

FORKING = SimpleNamespace(**vars(subprocess) | {"Popen": warm.popen})


@contextmanager
def worker(*kinds: type[Job], once: Job | None = None) -> Iterator[None]:
    """Runs what is queued, each in its child process, which is forked with its imports done, as a
    Celery worker would; or one attempt of `once`.
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "subprocess", FORKING)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
