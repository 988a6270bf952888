"""The light parts of one machine in one process: beat, and the workers of queues whose tasks only
follow a child process (a job's program, a model's server). `python -m flywheel.light`

It ends at once when it is asked to: jobs are not waited for, and their programs end with it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from celery import Celery, beat

from flywheel import telemetry
from flywheel.celery import Present, app
from flywheel.processes import LIGHT, WORKERS

log = logging.getLogger(__name__)
PAUSE_S = 2.0


def main() -> None:
    from apps.core.watching import workers

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: stopping.set())
    logging.getLogger().setLevel(logging.WARNING)
    telemetry.begin("light")
    schedule = beat.Service(app, scheduler_cls=app.conf.beat_scheduler)
    for run in (schedule.start, *(_consumer(queue) for queue in LIGHT)):
        threading.Thread(target=_keep_running, args=[run], daemon=True).start()
    stopping.wait()
    try:
        schedule.sync()
        workers.presence.leave()
    finally:
        os._exit(0)


def _keep_running(run: Callable[[], None]) -> None:
    """One that ends does not end the others."""
    while True:
        try:
            run()
        except Exception:
            log.exception("A part ended; it is started again in %d s", PAUSE_S)
        time.sleep(PAUSE_S)


def _consumer(queue: str) -> Callable[[], None]:
    """A worker of the queue. Each has an application of its own, which knows one queue."""

    def consume() -> None:
        own = Celery("flywheel", set_as_current=False)
        own.config_from_object("django.conf:settings", namespace="CELERY")
        own.steps["consumer"].add(Present)
        worker = own.WorkController(
            hostname=f"{queue}@{socket.gethostname()}",
            queues=[queue],
            pool="threads",
            concurrency=WORKERS[queue],
            use_eventloop=False,
            without_gossip=True,
            without_mingle=True,
        )
        logging.getLogger().setLevel(logging.WARNING)  # Celery has set Django up again
        worker.start()

    return consume


if __name__ == "__main__":
    main()
