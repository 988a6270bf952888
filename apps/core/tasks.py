from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.signals import beat_init
from django.apps import apps

from apps.core import attempts, jobs, outbox, runner
from apps.core.backups import schedule
from flywheel import alive, processes


@shared_task(name=jobs.TASK)
def run_job(label: str, pk: str) -> None:
    job = apps.get_model(label).objects.filter(pk=pk).first()
    if job is not None:
        runner.run(job)


# Longer than beat may be silent: where the queue is a minute behind, it would expire each time, and
# jobs of dead workers would never be found.
@shared_task(name="core.reap", expires=300)
def reap() -> dict[str, int]:
    alive.say(alive.BEAT)
    alive.note(list(processes.WORKERS))
    return jobs.reap()


@beat_init.connect
def reap_at_once(**_: Any) -> None:
    """What the schedule sends is due after ten seconds, for which /healthz would wait to hear that
    beat works."""
    outbox.post(reap.name, expires_s=reap.expires)


@shared_task(name="core.forget_attempts")
def forget_attempts() -> int:
    return attempts.forget_old()


@shared_task(name="core.back_up", expires=240)
def back_up() -> None:
    schedule.back_up_if_due()


@shared_task(name=schedule.NOW, expires=schedule.NOW_EXPIRES_S)
def back_up_now() -> None:
    schedule.back_up()
