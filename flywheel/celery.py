"""The Celery application. Messages are JSON and carry ids only; jobs live in the database."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import ExitStack
from typing import Any

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.signals import (
    after_task_publish,
    heartbeat_sent,
    task_postrun,
    task_prerun,
    worker_init,
    worker_shutdown,
)

from flywheel import acknowledging, logs, processes, telemetry

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")

acknowledging.install()
app = Celery("flywheel")
app.set_default()  # in every thread
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
_entered = threading.local()


@worker_init.connect
def _begin_tracing(sender: Any, **_: Any) -> None:
    telemetry.begin(str(sender.hostname).partition("@")[0])


@task_prerun.connect
def _enter(task: Any, args: Any, **_: Any) -> None:
    """Its lines and its span are of the request that asked for it."""
    headers = {
        name: value
        for name in ("request", "traceparent")
        if isinstance(value := getattr(task.request, name, None), str)
    }
    entered = ExitStack()
    if "request" in headers:
        entered.enter_context(logs.about(request=headers["request"]))
    entered.enter_context(telemetry.task(task.name, args or (), headers))
    vars(_entered).setdefault("stacks", []).append(entered)


@task_postrun.connect
def _leave(state: Any = None, retval: Any = None, **_: Any) -> None:
    if stacks := vars(_entered).get("stacks"):
        error = retval if isinstance(retval, BaseException) else None
        stacks.pop().__exit__(type(error) if error else None, error, None)


@worker_init.connect
def _name_worker(**_: Any) -> None:
    os.environ[processes.WORKER_PID] = str(os.getpid())


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
        if os.environ.get(processes.NAMED):  # of `up`, which says so itself, it is not
            print(f"{consumer.hostname} is ready.", flush=True)


@worker_shutdown.connect
def _sign_off(**_: Any) -> None:
    from apps.core.watching import workers

    workers.presence.leave()


app.steps["consumer"].add(Present)
