"""The Celery application. Messages are JSON and carry ids only; jobs live in the database."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import celeryd_after_setup, heartbeat_sent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")

app = Celery("flywheel")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

BEHIND = 10  # niceness of what works off what was received
_queues: list[str] = []


@celeryd_after_setup.connect
def _remember_queues(sender: Any, instance: Any, **_: Any) -> None:
    _queues[:] = list(instance.app.amqp.queues)
    if _queues == ["ingest"]:
        _give_way()


def _give_way() -> None:
    """What is received is acknowledged first, and pages answer, where there are not cores for all. Linux weighs sessions
    (`autogroup`), and processes only within one."""
    os.nice(BEHIND)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(BEHIND))


@heartbeat_sent.connect
def _say_alive(sender: Any, **_: Any) -> None:
    from flywheel import alive

    for queue in _queues:
        alive.say(queue)
