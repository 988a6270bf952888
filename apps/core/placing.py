"""Which workers can do a job: each says what its machine has (`Worker.has`), and a kind what its
jobs need. A job that all workers of its queue can do goes to the queue; one that only some can do
goes to those, each of which has a queue of its own besides. Several messages of one job do no harm:
it is claimed once.
"""

from __future__ import annotations

import socket
from typing import Any

from apps.core.bus import Question
from apps.core.kinds import Needs, kind_of
from apps.core.models import Job, Worker
from workers.lib.gpus import gpus
from workers.lib.memory import memory_limit


class Has(Question[set[str]]):
    """What this machine has that jobs may need (`Needs.things`)."""


def own_queue(queue: str, host: str) -> str:
    """Of the workers of one machine."""
    return f"{queue}.{host}"


def can_do(worker: Worker, needs: Needs) -> bool:
    """Also while it has not said yet what its machine has."""
    if not (has := worker.has):
        return True
    memory = max((gpu["memory_mb"] for gpu in has["gpus"]), default=has["memory_mb"])
    return needs.memory_mb <= memory and needs.things <= {*has["things"]}


def able_hosts(job: Job, queue: str) -> set[str] | None:
    """The machines whose workers of the queue can do the job; None if that makes no difference: all
    can, or none, and then whoever takes it says what is missing. A machine counts while its workers
    are silent or drained, as long as they are not forgotten.
    """
    asked = kind_of(job).needs
    needs = asked(job) if asked else Needs()
    if needs == Needs():
        return None
    workers = list(Worker.objects.filter(queue=queue))
    able = {worker.host for worker in workers if can_do(worker, needs)}
    return able if able and able != {worker.host for worker in workers} else None


def queues_for(job: Job, queue: str) -> list[str]:
    """Where its message goes."""
    able = able_hosts(job, queue)
    return [queue] if able is None else sorted(own_queue(queue, host) for host in able)


def is_for_others(job: Job, queue: str) -> bool:
    able = able_hosts(job, queue)
    return able is not None and socket.gethostname() not in able


def machine(things: set[str]) -> dict[str, Any]:
    """What a worker of this machine says of it."""
    return {
        "gpus": gpus(),
        "memory_mb": memory_limit()["memory"] // 2**20,
        "things": sorted(things),
    }
