"""The Celery application. Messages are JSON and carry ids only; jobs live in the database."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_after_setup, heartbeat_sent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")

app = Celery("flywheel")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

_queues: list[str] = []


@celeryd_after_setup.connect
def _remember_queues(sender: Any, instance: Any, **_: Any) -> None:
    _queues[:] = list(instance.app.amqp.queues)


@heartbeat_sent.connect
def _say_alive(sender: Any, **_: Any) -> None:
    from flywheel import alive

    for queue in _queues:
        alive.say(queue)
