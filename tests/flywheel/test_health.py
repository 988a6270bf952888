"""GET /healthz on the suite's own database and broker."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery.signals import beat_init
from django.conf import settings
from django.db import DatabaseError, connection
from django.test import Client

from apps.core import tasks
from flywheel import alive
from tests.living import NAMES, all_alive


@pytest.fixture(autouse=True)
def _all_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with all_alive(monkeypatch):
        yield


def parts_down(client: Client) -> set[str]:
    response = client.get("/healthz")
    body = response.json()
    assert response.status_code == (200 if body["healthy"] else 503)
    return {part for part, up in body["parts"].items() if not up}


@pytest.mark.django_db
def test_it_answers_200_without_a_login_when_all_is_up(client: Client) -> None:
    assert parts_down(client) == set()


@pytest.mark.django_db
@pytest.mark.parametrize("name", NAMES)
def test_a_worker_or_beat_that_is_silent_is_named(client: Client, name: str) -> None:
    alive.client().delete(alive.KEY.format(name))
    assert parts_down(client) == {name if name == alive.BEAT else f"worker {name}"}


@pytest.mark.django_db
def test_the_word_of_a_worker_expires(client: Client) -> None:
    for name in NAMES:
        silence = alive.client().ttl(alive.KEY.format(name))
        if name == alive.BEAT:  # which is heard of through a queue, late on a busy machine
            assert 60 < silence <= 180
        else:
            assert 0 < silence <= 60


@pytest.mark.django_db
def test_a_broker_that_is_away_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = redis.Redis(unix_socket_path="/nonexistent/valkey.sock")
    monkeypatch.setattr(alive, "client", lambda: nowhere)
    assert "broker" in parts_down(client)


@pytest.mark.django_db
def test_a_database_that_is_away_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise DatabaseError

    monkeypatch.setattr(connection, "cursor", away)
    assert parts_down(client) == {"database", "schema"}


@pytest.mark.django_db
def test_a_database_that_accepts_and_never_answers_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all of PostgreSQL does while it is frozen; an open connection does not show it."""
    connection.ensure_connection()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(Path(folder) / ".s.PGSQL.5432"))
        frozen.listen()
        for name, value in {"HOST": folder, "PORT": "5432"}.items():
            monkeypatch.setitem(connection.settings_dict, name, value)
        assert parts_down(client) == {"database", "schema"}


def test_beat_sends_at_once_what_shows_that_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(tasks.outbox, "post", lambda task, expires_s: sent.append(task))
    beat_init.send(sender=None)
    assert sent == [settings.CELERY_BEAT_SCHEDULE["reap"]["task"]]
