"""A frozen PostgreSQL or broker (SIGSTOP) keeps nobody waiting."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery import Celery
from django.conf import settings
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse
from psycopg import errors

from apps.core import outbox
from apps.core.models import Project
from apps.trajectories import digest
from flywheel.embedded import ROLE, Layout
from flywheel.postgres import watched
from flywheel.servers import _valkey_binary
from tests.factories import key_headers, make_member, row
from tests.flywheel.machine import Machine, eventually


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> watched.Watch:
    """Of a process that watches."""
    watch = watched.Watch()
    monkeypatch.setattr(watched, "watch", watch)
    return watch


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def backends(connection: psycopg.Connection[Any]) -> list[int]:
    """The processes of the server, its postmaster first."""
    parent = int(Path(f"/proc/{connection.info.backend_pid}/stat").read_text().split()[3])
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *map(int, children)]


def test_a_probe_that_found_no_answer_while_others_waited_asks_again(
    watch: watched.Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever decides that the server is frozen may do so after the probe has given up."""
    answers = iter([False, False])

    class Answer:
        def execute(self, _: str) -> None: ...

    def connect(**_: object) -> Answer:
        if next(answers, True):
            return Answer()
        raise errors.ConnectionTimeout

    monkeypatch.setattr(watched._Probe, "connect", connect)
    watch.begin({})
    assert watch.is_frozen()
    assert eventually(lambda: watch.frozen_since is None, patience_s=30)


@pytest.mark.slow
def test_a_frozen_database_is_given_up_and_found_again(
    machine: Machine, watch: watched.Watch
) -> None:
    machine.user()
    address = {"host": str(Layout.of(machine.data).run), "user": ROLE, "dbname": "flywheel"}
    open_one, other = (
        watched.Connection.connect(**address, autocommit=True, connect_timeout=60) for _ in range(2)
    )
    watch.begin(address)
    open_one.execute("SELECT pg_sleep(1.5)")  # slow is not frozen
    with frozen(backends(open_one)):
        for attempt in (
            lambda: open_one.execute("SELECT 1"),
            lambda: other.execute("SELECT 1"),
            lambda: watched.Connection.connect(**address),
        ):
            with pytest.raises(psycopg.OperationalError, match=watched.FROZEN):
                attempt()
        assert open_one.closed and other.closed
        assert watch.frozen_since is not None
    eventually(lambda: watch.frozen_since is None)
    with watched.Connection.connect(**address, connect_timeout=60) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)


class Clock:
    """Of a machine: what sleeps is woken `late` times as late as it asked. An answer comes at
    `answer_s`.
    """

    def __init__(self, watch: watched.Watch, late: float, answer_s: float) -> None:
        self.watch, self.late, self.answer_s, self.now = watch, late, answer_s, 0.0

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds * self.late
        if before < self.answer_s <= self.now:
            self.watch.note_answer()

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("late", "answer_s", "silent_s", "is_frozen"),
    [
        (1, 0.4, 0.8, False),
        (1, 1.5, 0.8, True),  # nobody is answered, and the machine has time
        (10, 1.5, 0.8, False),  # slow but alive: the machine is overloaded
        (10, 1e9, 0.8, True),
        (1, 1.5, 3.0, False),  # FLYWHEEL_DATABASE_SILENT_S
        (1, 3.5, 3.0, True),
    ],
)
def test_a_machine_that_is_merely_overloaded_is_not_taken_for_a_frozen_database(
    watch: watched.Watch,
    monkeypatch: pytest.MonkeyPatch,
    late: float,
    answer_s: float,
    silent_s: float,
    is_frozen: bool,
) -> None:
    watch.silent_s = silent_s
    clock = Clock(watch, late, answer_s - watched.WAITED_S)
    monkeypatch.setattr(watched, "time", clock)
    assert watch.is_frozen() is is_frozen
    assert (watch.frozen_since is not None) is is_frozen


@pytest.mark.django_db
def test_nobody_waits_for_a_database_that_is_known_to_be_frozen(
    project: Project, watch: watched.Watch, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents send again, people read what is wrong."""
    headers = key_headers(project)
    client.raise_request_exception = False

    def frozen(*given: Any, **options: Any) -> None:
        raise OperationalError(watched.FROZEN)

    monkeypatch.setattr(connection, "cursor", frozen)
    client.cookies["sessionid"] = "x" * 32
    sent = client.post(
        "/api/v1/trajectories/", row(name="a"), content_type="application/json", **headers
    )
    page = client.get(f"/p/{project.slug}/failures/")
    assert (sent.status_code, page.status_code) == (503, 503)
    assert sent["Retry-After"] and page["Retry-After"]
    assert "The database is unavailable" in page.content.decode()


@pytest.fixture
def frozen_broker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """A real one that is stopped, and the process's outbox; whoever waits for it waits for ever."""
    address = folder / "broker.sock"
    command = [str(_valkey_binary()), "--port", "0", "--unixsocket", str(address), "--save", ""]
    server = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    app = Celery("frozen", broker=f"redis+socket://{address}", set_as_current=False)
    app.conf.broker_transport_options = {"socket_timeout": None}
    monkeypatch.setattr(outbox, "current_app", app)
    monkeypatch.setattr(outbox, "_outbox", outbox.Outbox())
    try:
        eventually(address.exists)
        with frozen([server.pid]):
            yield app
        assert outbox._outbox.flush(300)  # thawed, it gets all
        with app.connection_for_read() as connection:
            assert connection.default_channel.client.llen("ingest") > 0
    finally:
        server.kill()
        server.wait()


@pytest.mark.django_db(transaction=True)
def test_receiving_and_pages_do_not_wait_for_a_frozen_broker(
    project: Project, frozen_broker: Celery, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest.wake, "_sent_at", -math.inf)
    frozen_broker.conf.task_routes = settings.CELERY_TASK_ROUTES
    sent = client.post(
        "/api/v1/trajectories/",
        row(name="a"),
        content_type="application/json",
        **key_headers(project),
    )
    assert sent.status_code == 201, sent.content
    client.force_login(make_member(project))
    for page in ("failures:list", "trajectories:list"):
        assert client.get(reverse(page, args=[project.slug])).status_code == 200
    assert client.post(reverse("failures:recluster", args=[project.slug])).status_code == 302
    assert not outbox._outbox.flush(0)


@pytest.mark.parametrize("kind", [watched._Probe, watched.Connection])
def test_a_connection_that_a_frozen_server_did_not_answer_is_closed_at_once(
    kind: type[psycopg.Connection], tmp_path: Path
) -> None:
    """Not when garbage is collected: the server would have it once it is back."""
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(tmp_path / ".s.PGSQL.5432"))
        frozen.listen(1)
        gc.disable()
        try:
            with pytest.raises(psycopg.Error):
                kind.connect(host=str(tmp_path), user="x", dbname="x", connect_timeout=2)
            accepted, _ = frozen.accept()
            accepted.settimeout(5)
            while accepted.recv(4096):
                pass  # what it sent before it gave up; then the end, or TimeoutError
        finally:
            gc.enable()
