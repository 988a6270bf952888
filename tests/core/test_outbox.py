"""Messages to workers: whoever posts one does not wait for the broker, and none is lost while the
broker is away.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from kombu.exceptions import OperationalError as BrokerError

from apps.core import outbox
from apps.core.models import Project
from apps.core.waking import Waker
from tests.factories import key_headers, make_member, row

PATIENCE_S = 60.0


class Broker:
    """One that answers nobody until it is released, or that refuses."""

    def __init__(self) -> None:
        self.running, self.asked = threading.Event(), threading.Event()
        self.refuses, self.got = 0, []

    def send_task(self, task: str, args: list[Any], **options: Any) -> None:
        self.asked.set()
        assert self.running.wait(PATIENCE_S)
        if self.refuses:
            self.refuses -= 1
            raise BrokerError("no broker")
        assert 0 < options["expires"] <= 600 and options["retry"] is False
        self.got.append((task, *args))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """The broker of an outbox as a process has it."""
    broker = Broker()
    monkeypatch.setattr(outbox.current_app, "send_task", broker.send_task)
    monkeypatch.setattr(outbox, "LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(outbox, "_outbox", outbox.Outbox())
    yield broker
    broker.running.set()
    assert outbox._outbox.flush(PATIENCE_S)


def post(task: str, *args: Any, expires_s: float = 600) -> None:
    outbox.post(task, *args, expires_s=expires_s)


def test_a_frozen_broker_keeps_nobody_waiting(broker: Broker) -> None:
    post("first")
    assert broker.asked.wait(PATIENCE_S)
    for task in ("twice", "twice", "worthless", "last"):
        post(task, 1, expires_s=-1 if task == "worthless" else 600)
    assert broker.got == []
    broker.running.set()
    assert outbox._outbox.flush(PATIENCE_S)
    assert broker.got == [("first",), ("twice", 1), ("last", 1)]


def test_a_broker_that_comes_back_gets_what_waited(broker: Broker) -> None:
    broker.refuses = 3
    broker.running.set()
    post("a")
    post("b")
    assert outbox._outbox.flush(PATIENCE_S)
    assert sorted(broker.got) == [("a",), ("b",)]


def test_one_that_cannot_be_sent_does_not_stop_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = broker.send_task

    def picky(task: str, args: list[Any], **options: Any) -> None:
        if task == "bad":
            raise TypeError("not JSON")
        send(task, args, **options)

    monkeypatch.setattr(outbox.current_app, "send_task", picky)
    broker.running.set()
    post("bad")
    post("good")
    assert outbox._outbox.flush(PATIENCE_S)
    assert broker.got == [("good",)]


def test_what_waits_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    post("first")
    assert broker.asked.wait(PATIENCE_S)
    monkeypatch.setattr(outbox, "MOST_WAITING", 2)
    for number in range(5):
        post("next", number)
    broker.running.set()
    assert outbox._outbox.flush(PATIENCE_S)
    assert broker.got == [("first",), ("next", 0), ("next", 1)]


def test_a_waker_posts_once_for_many_calls(broker: Broker) -> None:
    wake = Waker("wake", expires_s=30, every_s=3600)
    broker.running.set()
    for _ in range(5):
        wake()
    assert outbox._outbox.flush(PATIENCE_S)
    assert broker.got == [("wake",)]


@pytest.mark.django_db(transaction=True)
def test_requests_answer_while_the_broker_is_frozen(project: Project, broker: Broker) -> None:
    """Receiving a run wakes the digest; the page that asks for a clustering queues a task."""
    post("holds the thread")
    assert broker.asked.wait(PATIENCE_S)
    client = Client()
    sent = client.post(
        "/api/v1/trajectories/",
        row(name="while it is frozen"),
        content_type="application/json",
        **key_headers(project),
    )
    assert sent.status_code == 201, sent.content
    client.force_login(make_member(project))
    assert client.post(reverse("failures:recluster", args=[project.slug])).status_code == 302
    assert broker.got == []
    broker.running.set()
    assert outbox._outbox.flush(PATIENCE_S)
    assert ("failures.recluster", project.pk) in broker.got


def test_only_the_outbox_and_tasks_talk_to_the_broker() -> None:
    root = Path(settings.BASE_DIR)
    files = [*root.glob("apps/**/*.py"), *root.glob("flywheel/**/*.py")]
    sends = {
        str(path.relative_to(root))
        for path in files
        if re.search(r"\.(send_task|delay|apply_async)\(", path.read_text())
    }
    assert {name for name in sends if not name.endswith("/tasks.py")} == {"apps/core/outbox.py"}
