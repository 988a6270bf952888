"""The Celery application. Messages are JSON and carry ids only; jobs live in the database."""

from __future__ import annotations

import gc
import os
from typing import Any

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.signals import after_task_publish, heartbeat_sent, worker_init, worker_shutdown

from flywheel import processes

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")

app = Celery("flywheel")
app.set_default()  # in every thread
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_init.connect
def _collect_garbage_seldom(**_: Any) -> None:
    """A batch makes a hundred thousand objects that go together: looking through them as often as
    Python does by itself takes a tenth of the time.
    """
    gc.set_threshold(50_000, 5, 5)


@heartbeat_sent.connect
def _say_alive(sender: Any, **_: Any) -> None:
    from flywheel import alive

    alive.say(alive.queue_of(sender.eventer.hostname))
    processes.say_works()


@after_task_publish.connect
def _beat_works(**_: Any) -> None:
    if os.environ.get(processes.NAMED) == "beat":
        processes.say_works()


class Present(StartStopStep):
    """A worker that is ready signs on (`apps.core.watching.workers`)."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        from apps.core.watching import workers

        workers.presence.join(consumer)


@worker_shutdown.connect
def _sign_off(**_: Any) -> None:
    from apps.core.watching import workers

    workers.presence.leave()


app.steps["consumer"].add(Present)
