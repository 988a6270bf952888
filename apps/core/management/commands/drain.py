"""`manage.py drain`: workers of a machine end what they do and take nothing more."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError
from django.db.models import Q

from apps.core.actions import audit
from apps.core.kinds import job_models, kind_of
from apps.core.models import JobState, Worker
from apps.core.watching.workers import drain

POLL_S = 2.0


class Command(BaseCommand):
    help = (
        "Has workers finish their tasks and take no more, such as before their machine is stopped;"
        " --resume undoes it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("worker", help="a worker (train@gpu-1) or a machine (gpu-1)")
        parser.add_argument("--resume", action="store_true", help="they take tasks again")
        parser.add_argument("--wait", action="store_true", help="until they do nothing")

    def handle(self, *, worker: str, resume: bool, wait: bool, **options: Any) -> None:
        found = list(Worker.objects.filter(Q(name=worker) | Q(host=worker)))
        if not found:
            known = ", ".join(Worker.objects.values_list("name", flat=True)) or "none"
            raise CommandError(f"There is no worker or machine “{worker}”. Workers: {known}.")
        for one in found:
            drain(one, not resume)
            audit(
                "operator.resumed" if resume else "operator.drained",
                project=None,
                by=None,
                worker=one.name,
            )
            self.stdout.write(f"{one.name} {'takes tasks again' if resume else 'takes no more'}.")
        while wait and (left := running(found)):
            self.stdout.write(f"Waiting for {', '.join(left)}.")
            time.sleep(POLL_S)


def running(workers: list[Worker]) -> list[str]:
    """The jobs that these workers have."""
    return [
        job.name
        for model in job_models()
        for worker in workers
        if kind_of(model()).queue == worker.queue
        for job in model.objects.filter(state=JobState.RUNNING, worker=worker.of_jobs)
    ]
