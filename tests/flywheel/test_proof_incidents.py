"""Real faults of an installation that runs (`make proof`): each is seen on /readyz, in metrics, on
the operator's page and by the operators' webhook, requests do not wait for it, and it is over when
it is mended. How long each took is printed.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flywheel.processes import WORKERS
from tests.flywheel.installation import Inbox, Installation, stopped
from tests.flywheel.machine import Machine, eventually

pytestmark = pytest.mark.proof


def frozen_worker(it: Installation) -> Any:
    return stopped(it.machine.part("default")[:1])


@contextmanager
def dead_workers(it: Installation) -> Iterator[None]:
    """And nobody who starts them again."""
    supervisor = it.machine.started[-1].pid
    (light,) = it.machine.part("light")
    with stopped([supervisor]):
        os.kill(light, signal.SIGKILL)
        yield


def frozen_broker(it: Installation) -> Any:
    return stopped(it.machine.processes("valkey-server"))


def frozen_database(it: Installation) -> Any:
    return stopped(it.postgres())


@contextmanager
def few_connections(it: Installation) -> Iterator[None]:
    with ExitStack() as held:
        used = int(it.connect().execute("SELECT count(*) FROM pg_stat_activity").fetchone()[0])
        for _ in range(112 - used):
            held.callback(it.connect().close)
        yield


@contextmanager
def other_schema(it: Installation) -> Iterator[None]:
    change = "ALTER TABLE automation_flow RENAME TO flow_of_another_version"
    back = "ALTER TABLE flow_of_another_version RENAME TO automation_flow"
    with it.connect() as connection:
        connection.execute(change)
        yield
        connection.execute(back)


@contextmanager
def frozen_server(it: Installation) -> Iterator[None]:
    """It accepts connections and never answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as frozen:
        it.machine.python(SEED.format(port=frozen.server_port))
        yield
        it.machine.python(UNSEED)


SEED = """
from apps.core.models import Project
from apps.promotion import actions
from apps.promotion.policies import channel_of
from apps.registry.actions import register_endpoint
from apps.registry.servers import add_server
project = Project.objects.get()
by = project.memberships.first().user
fields = {{"name": "alpha", "kind": "vllm", "base_url": "http://127.0.0.1:{port}/v1"}}
server = add_server(project=project, fields=fields, by=by, operator=True)
version = register_endpoint(project=project, server=server, served_as="m", name="m", by=by)
actions.set_initial(channel=channel_of(project), version=version, by=by)
"""
UNSEED = """
from apps.promotion.models import Channel
Channel.objects.update(current=None)
"""
POISON = """
from django.utils import timezone
from apps.core.models import Project, ProjectDeletion
project = Project.objects.get()
ProjectDeletion.objects.create(project=project, name="poisoned", state="failed", attempt=3,
    finished_at=timezone.now())
"""


@contextmanager
def poisoned_job(it: Installation) -> Iterator[None]:
    it.machine.python(POISON)
    yield
    it.machine.python("from apps.core.models import ProjectDeletion as D\nD.objects.all().delete()")


@contextmanager
def skewed_clock(it: Installation) -> Iterator[None]:
    """As a worker of another machine would say it."""
    with it.connect() as connection:
        connection.execute(
            "INSERT INTO core_worker (name, queue, host, pid, version, at_once, memory_mb, skew_s,"
            " started_at, beat_at) VALUES ('eval@elsewhere', 'eval', 'elsewhere', 1, '', 1, 1, 600,"
            " now(), now() + interval '1 hour')"
        )
        yield
        connection.execute("DELETE FROM core_worker WHERE host = 'elsewhere'")


@dataclass(frozen=True)
class Fault:
    """`sent`: how a run is answered meanwhile; `is_shown`: whether pages are."""

    condition: str
    plant: Callable[[Installation], Any]
    about: str = ""
    part: str = ""
    sent: int = 201
    is_shown: bool = True


FAULTS = [
    Fault("worker_silent", frozen_worker, "default@1"),
    Fault("queue_unserved", dead_workers, "train", "queues"),
    Fault("broker", frozen_broker, part="broker"),
    Fault("database", frozen_database, part="database", sent=503, is_shown=False),
    Fault("connections", few_connections),
    Fault("schema", other_schema, part="schema"),
    Fault("job_poisoned", poisoned_job),
    Fault("clock_skew", skewed_clock, "elsewhere"),
    Fault("server_down", frozen_server, "alpha", "servers"),
]


def is_seen_and_nobody_waits(it: Installation, fault: Fault) -> None:
    name = fault.condition
    assert it.sends(f"before {name}") == 201
    it.inbox.got.clear()
    with fault.plant(it):
        began = time.monotonic()
        assert it.sends(f"during {name}") == fault.sent
        answered = time.monotonic() - began
        page = it.client.get("/?all")
        assert page.status_code == (200 if fault.is_shown else 503)
        paged = time.monotonic() - began - answered
        if fault.part:
            eventually(lambda: it.part(fault.part) == "down")
        eventually(lambda: it.found(name))
        seen = time.monotonic() - began
        eventually(lambda: it.inbox.has(name, fault.about, over=False))
        alerted = time.monotonic() - began
        if fault.is_shown:
            eventually(lambda: it.shown(name))
    print(
        f"{name}: a run answered in {answered:.2f} s, a page in {paged:.2f} s; in metrics after"
        f" {seen:.0f} s, an alert after {alerted:.0f} s",
        flush=True,
    )
    eventually(lambda: it.inbox.has(name, fault.about, over=True))
    eventually(lambda: not it.found(name))
    eventually(lambda: it.sends(f"after {name}") == 201)


def test_each_fault_is_seen_and_nobody_waits_for_it(machine: Machine) -> None:
    it = Installation(machine, Inbox())
    eventually(lambda: it.client.get("/readyz").status_code == 200)
    all_there = f'flywheel_workers{{queue="default"}} {WORKERS["default"]}.0'
    eventually(lambda: all_there in it.client.get("/metrics").text)
    it.log_in()
    drained_workers_take_nothing_more(it)
    for fault in FAULTS:
        is_seen_and_nobody_waits(it, fault)
    eventually(lambda: it.client.get("/readyz").status_code == 200)


def drained_workers_take_nothing_more(it: Installation) -> None:
    with it.connect() as connection:
        rows = connection.execute("SELECT id FROM core_worker WHERE queue = 'default'").fetchall()
    assert len(rows) == WORKERS["default"]

    def waiting() -> float:
        text = it.client.get("/metrics").text
        length = re.search(r'flywheel_queue_length{queue="default"} ([\d.]+)', text)
        assert length
        return float(length[1])

    for is_long_enough in (lambda: waiting() >= 20, lambda: waiting() == 0):
        page = it.client.get("/operator/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token
        for (pk,) in rows:
            sent = it.client.post(
                f"/operator/workers/{pk}/drain/",
                data={"csrfmiddlewaretoken": token[1]},
                headers={"Referer": str(it.client.base_url)},
            )
            assert sent.status_code == 302
        eventually(is_long_enough)
