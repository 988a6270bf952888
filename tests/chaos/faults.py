"""The faults, by kind. Each is a function that has the fault begin and end, and yields what it did;
what it does is drawn by the seed.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psycopg
from django.conf import settings

from apps.core import jobs
from apps.core.kinds import job_models, kind_of
from flywheel import alive
from flywheel.celery import app
from tests.chaos import clock
from tests.chaos.world import World
from tests.flywheel.installation import stopped
from tests.flywheel.machine import eventually

PARTS = ("web", "endpoint", "storing", "default", "ingest", "judge", "light", "forks")
DATABASE, BROKER, SERVICES = "bin/postgres\0-D", "valkey-server", "flywheel.servers"
Fault = Callable[[World, Random], Iterator[str]]
FAULTS: dict[str, Fault] = {}


def fault(inflict: Fault) -> Fault:
    FAULTS[inflict.__name__.replace("_", "-")] = inflict
    return inflict


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def hold(rng: Random, least: float, most: float) -> float:
    time.sleep(seconds := rng.uniform(least, most))
    return seconds


@fault
def kill_process(world: World, rng: Random) -> Iterator[str]:
    """kill -9 of one or all processes of a part."""
    part = rng.choice(PARTS)
    pids = eventually(lambda: world.machine.part(part))
    pids = pids if rng.random() < 0.3 else [rng.choice(sorted(pids))]
    kill(pids)
    yield f"{len(pids)} of {part}"


@fault
def kill_job(world: World, rng: Random) -> Iterator[str]:
    """kill -9 of the process that computes, once or twice."""
    times = rng.choice((1, 2))
    for _ in range(times):
        kill([rng.choice(eventually(lambda: world.machine.processes("-m\0workers.")))])
        time.sleep(1)
    yield f"{times} times"


@fault
def kill_up(world: World, rng: Random) -> Iterator[str]:
    """kill -9 of `up` itself; it is started again, as a process manager does."""
    supervisor = world.machine.started[-1]
    supervisor.kill()
    supervisor.wait()
    yield "up"
    world.start_again()


@fault
def freeze_process(world: World, rng: Random) -> Iterator[str]:
    """SIGSTOP, later SIGCONT, of all processes of a part."""
    part = rng.choice(PARTS)
    with stopped(eventually(lambda: world.machine.part(part))):
        seconds = hold(rng, 2, 45)
        yield f"{part} for {seconds:.0f} s"


@fault
def restart_database(world: World, rng: Random) -> Iterator[str]:
    """PostgreSQL stops at once (SIGQUIT), with its clients disconnected (SIGINT), or is killed."""
    how = rng.choice((signal.SIGQUIT, signal.SIGINT, signal.SIGKILL))
    kill([world.machine.postmaster()], how)
    yield how.name


@fault
def freeze_database(world: World, rng: Random) -> Iterator[str]:
    with stopped(world.it.postgres()):
        seconds = hold(rng, 2, 30)
        yield f"for {seconds:.0f} s"


@fault
def slow_database(world: World, rng: Random) -> Iterator[str]:
    """It runs 50 ms of every 250 ms, as one whose disk is slow."""
    until = time.monotonic() + rng.uniform(8, 20)
    while time.monotonic() < until:
        with stopped(world.it.postgres()):
            time.sleep(0.2)
        time.sleep(0.05)
    yield "a fifth of the time"


@fault
def restart_broker(world: World, rng: Random) -> Iterator[str]:
    """What it had is lost, or kept on its disk."""
    how = rng.choice((signal.SIGTERM, signal.SIGKILL))
    kill(world.machine.processes(BROKER), how)
    yield how.name


@fault
def freeze_broker(world: World, rng: Random) -> Iterator[str]:
    with stopped(world.machine.processes(BROKER)):
        seconds = hold(rng, 2, 45)
        yield f"for {seconds:.0f} s"


@fault
def empty_broker(world: World, rng: Random) -> Iterator[str]:
    """All messages are lost."""
    alive.client().flushall()
    yield "FLUSHALL"


@fault
def kill_services(world: World, rng: Random) -> Iterator[str]:
    """The supervisor of PostgreSQL and Valkey, and both with it."""
    kill(world.machine.processes(SERVICES))
    yield "PostgreSQL and Valkey"


@fault
def cut_connections(world: World, rng: Random) -> Iterator[str]:
    """Every connection to PostgreSQL and the broker is closed, several times."""
    times = rng.randint(1, 5)
    for _ in range(times):
        with suppress(psycopg.Error), world.it.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        alive.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        alive.client().execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(rng.uniform(0.1, 2))
    yield f"{times} times"


@fault
def full_disk(world: World, rng: Random) -> Iterator[str]:
    """The file system of the data folder, PostgreSQL's included, has no byte left."""
    filler = world.folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    try:
        seconds = hold(rng, 3, 25)
        yield f"for {seconds:.0f} s"
    finally:
        filler.unlink()


@fault
def clock_jump(world: World, rng: Random) -> Iterator[str]:
    """The clock of all processes jumps, stays there for a while, and jumps back."""
    ahead = rng.choice((-3600, -90, 90, 3600, 90_000))
    clock.move(world.clock, ahead)
    try:
        seconds = hold(rng, 5, 20)
        yield f"{ahead:+d} s for {seconds:.0f} s"
    finally:
        clock.move(world.clock, 0)


@fault
def bad_messages(world: World, rng: Random) -> Iterator[str]:
    """Messages that are twice there, name what is not there, or are none at all."""

    doubled = 0
    for model in job_models():
        for job in model.objects.order_by("-created_at")[:5]:
            for _ in range(3):
                app.send_task(jobs.TASK, [job._meta.label, str(job.pk)], queue=kind_of(job).queue)
                doubled += 1
    queues = [*settings.QUEUES]
    for _ in range(rng.randint(5, 20)):
        queue = rng.choice(queues)
        name, arguments = rng.choice(
            (
                (jobs.TASK, ["evals.EvalRun", str(uuid.uuid4())]),
                (jobs.TASK, ["evals.EvalRun", "no id"]),
                (jobs.TASK, ["no.Model", str(uuid.uuid4())]),
                (jobs.TASK, []),
                ("no.such_task", [1]),
            )
        )
        app.send_task(name, arguments, queue=queue)
    raw = rng.choice((b"", b"\xff\xfe", b"{", b"[]", b"null", json.dumps({"body": 1}).encode()))
    if rng.random() < 0.5:
        alive.client().lpush(rng.choice(queues), raw)
    else:
        raw = b""
    yield f"{doubled} doubled, and {raw!r}"


@fault
def gpu_vanishes(world: World, rng: Random) -> Iterator[str]:
    """nvidia-smi finds none any more, and what computes ends (simulated)."""
    world.gpu_gone.touch()
    try:
        kill(world.machine.processes("-m\0workers."))
        kill(world.machine.part("light"))
        seconds = hold(rng, 5, 15)
        yield f"for {seconds:.0f} s"
    finally:
        world.gpu_gone.unlink()


@fault
def several(world: World, rng: Random) -> Iterator[str]:
    """Two or three of the others, one after another. A job has three attempts, so one that is
    killed twice is left out.
    """
    reasons = why_not(world)
    kinds = [kind for kind in FAULTS if kind not in {"several", "kill-job", *reasons}]
    costly = {"kill-process", "kill-up", "gpu-vanishes", "freeze-process"}
    drawn = rng.sample(kinds, rng.choice((2, 3)))
    while sum(kind in costly for kind in drawn) > 2:
        drawn = rng.sample(kinds, 2)
    did = []
    for kind in drawn:
        with inflicted[kind](world, rng) as done:
            pass
        did.append(f"{kind} ({done})")
        time.sleep(rng.uniform(0, 3))
    yield ", then ".join(did)


def why_not(world: World) -> dict[str, str]:
    """{fault: why it cannot be tried here}."""
    reasons = {}
    if not world.has_clock:
        reasons["clock-jump"] = "no C compiler"
    if not Path(world.folder).is_mount():
        reasons["full-disk"] = "no file system of its own (needs root)"
    return reasons


inflicted = {name: contextmanager(inflict) for name, inflict in FAULTS.items()}
