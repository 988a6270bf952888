"""Real faults of an installation that runs (`make proof`): each is seen on /readyz, in metrics, on
the operator's page and by the operators' webhook within SEEN_S, requests do not wait for it, and it
is over when it is mended. How long each took is printed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flywheel.processes import WORKERS
from tests.flywheel.installation import Inbox, Installation, stopped
from tests.flywheel.machine import Machine, eventually, free_port

pytestmark = pytest.mark.proof
SEEN_S = 60
DISK = 8 * 2**20


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
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as frozen,
        live_server(it, "frozen", frozen.server_port),
    ):
        yield


@contextmanager
def failed_server(it: Installation) -> Iterator[None]:
    """Nothing listens there any more."""
    with live_server(it, "failed", free_port()):
        yield


@contextmanager
def live_server(it: Installation, name: str, port: int) -> Iterator[None]:
    """Of the channel's version."""
    it.machine.python(SEED.format(name=name, port=port))
    yield
    it.machine.python(UNSEED)


SEED = """
from apps.core.models import Project
from apps.promotion.models import Channel
from apps.promotion.policies import channel_of
from apps.registry.actions import register_endpoint
from apps.registry.servers import add_server
project = Project.objects.get()
by = project.memberships.first().user
url = "http://127.0.0.1:{port}/v1"
fields = {{"name": "{name}", "kind": "vllm", "base_url": url}}
server = add_server(project=project, fields=fields, by=by, operator=True)
version = register_endpoint(project=project, server=server, served_as="m", name="{name}", by=by)
Channel.objects.filter(pk=channel_of(project).pk).update(current=version)
"""
UNSEED = """
from apps.promotion.models import Channel
Channel.objects.update(current=None)
"""


def nearly_full_disk(it: Installation) -> Any:
    return filled(it, 0.9)


def full_disk(it: Installation) -> Any:
    return filled(it, 0.96)


@contextmanager
def filled(it: Installation, share: float) -> Iterator[None]:
    filling = Path(it.machine.environment["FLYWHEEL_MODEL_FOLDERS"]) / "filling"
    filling.write_bytes(bytes(int(share * DISK)))
    yield
    filling.unlink()


@contextmanager
def dropped_partitions(it: Installation) -> Iterator[None]:
    """Those of the next month. The button of the operator's page makes them again."""
    it.machine.python(DROP)
    yield
    it.press("/operator/conditions/partition_missing/mend/", about="")


DROP = """
from apps.trajectories import partitions
assert partitions.drop(partitions.months()[-1], lambda *given: True)
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
            "INSERT INTO core_worker (name, queue, host, pid, version, at_once, memory_mb, has,"
            " skew_s, started_at, beat_at) VALUES ('eval@elsewhere', 'eval', 'elsewhere', 1, '',"
            " 1, 1, '{}', 600, now(), now() + interval '1 hour')"
        )
        yield
        connection.execute("DELETE FROM core_worker WHERE host = 'elsewhere'")


@dataclass(frozen=True)
class Fault:
    """`part`: of /readyz, which is 503 then. `sent`: how a run is answered meanwhile; `is_shown`:
    whether pages are.
    """

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
    Fault("connections", few_connections, "flywheel-web"),
    Fault("schema", other_schema, part="schema"),
    Fault("job_poisoned", poisoned_job),
    Fault("clock_skew", skewed_clock, "elsewhere"),
    Fault("server_down", frozen_server, "frozen", "servers"),
    Fault("server_down", failed_server, "failed", "servers"),
    Fault("disk_nearly_full", nearly_full_disk, "models"),
    Fault("disk_full", full_disk, "models", "disk"),
    Fault("partition_missing", dropped_partitions),
]


def is_seen_and_nobody_waits(it: Installation, fault: Fault) -> None:
    name = fault.condition
    assert it.sends(f"before {fault.plant.__name__}") == 201
    it.inbox.got.clear()
    places = {
        "/readyz": lambda: it.said(name, fault.part),
        "metrics": lambda: it.found(name),
        "an alert": lambda: it.inbox.has(name, fault.about, over=False),
        "the operator's page": lambda: it.shown(name) if fault.is_shown else it.is_refused(),
    }
    with fault.plant(it):
        began = time.monotonic()
        assert it.sends(f"during {fault.plant.__name__}") == fault.sent
        answered = time.monotonic() - began
        page = it.client.get("/?all")
        assert page.status_code == (200 if fault.is_shown else 503)
        paged = time.monotonic() - began - answered
        seen = dict[str, float]()
        eventually(lambda: look(places, seen, began))
    print(
        f"{fault.plant.__name__}: a run answered in {answered:.2f} s, a page in {paged:.2f} s; "
        + ", ".join(f"{place} after {seconds:.0f} s" for place, seconds in seen.items()),
        flush=True,
    )
    assert max(seen.values()) <= SEEN_S, seen
    eventually(lambda: it.inbox.has(name, fault.about, over=True))
    eventually(lambda: not it.found(name) and not it.said(name, fault.part))
    eventually(lambda: not it.shown(name))
    eventually(lambda: it.sends(f"after {fault.plant.__name__}") == 201)


def look(places: dict[str, Callable[[], bool]], seen: dict[str, float], began: float) -> bool:
    """Notes where it is seen now, and when. Whether it was seen everywhere."""
    for place, is_there in places.items():
        if place not in seen and is_there():
            seen[place] = time.monotonic() - began
    return seen.keys() == places.keys()


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """One that can be filled."""
    place = folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0777", "tmpfs", str(place)]
    if os.getuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("Only root can mount a disk that can be filled.")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_each_fault_is_seen_and_nobody_waits_for_it(machine: Machine, small_disk: Path) -> None:
    machine.environment |= {"FLYWHEEL_MODEL_FOLDERS": str(small_disk)}
    it = Installation(machine, Inbox())
    eventually(lambda: it.client.get("/readyz").status_code == 200)
    all_there = f'flywheel_workers{{queue="default"}} {WORKERS["default"]}.0'
    eventually(lambda: all_there in it.client.get("/metrics").text)
    it.log_in()
    for fault in FAULTS:
        is_seen_and_nobody_waits(it, fault)
    eventually(lambda: it.client.get("/readyz").status_code == 200)
    drained_workers_take_nothing_more(it)


def drained_workers_take_nothing_more(it: Installation) -> None:
    with it.connect() as connection:
        rows = connection.execute("SELECT id FROM core_worker WHERE queue = 'default'").fetchall()
    assert len(rows) == WORKERS["default"]

    def waiting() -> float:
        text = it.client.get("/metrics").text
        length = re.search(r'flywheel_queue_length{queue="default"} ([\d.]+)', text)
        assert length
        return float(length[1])

    for is_long_enough in (lambda: waiting() >= 20, lambda: waiting() < 20):
        for (pk,) in rows:
            it.press(f"/operator/workers/{pk}/drain/")
        eventually(is_long_enough)
