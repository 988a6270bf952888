from __future__ import annotations

from celery import shared_task

from apps.trajectories import digest as digesting
from apps.trajectories import partitions


@shared_task(name="trajectories.digest", expires=30)
def digest() -> int:
    return digesting.run_while_there_is_some()


@shared_task(name="trajectories.partitions")
def make_partitions() -> None:
    partitions.ensure_ahead()
