"""Background work gives way to receivers, and no longer once what waits is late."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.core import lags, runner
from apps.failures import classify_job
from apps.failures.models import Unclassified
from apps.trajectories.actions.store import ingest
from apps.trajectories.digest import run as digest
from apps.trajectories.models import Arrival, SpanBody
from flywheel import priority
from tests.factories import make_project, row


def nicenesses(*steps: Callable[[], None]) -> list[tuple[int, int]]:
    """Of a new thread and of its database process, after each step."""
    seen: list[tuple[int, int]] = []

    def work() -> None:
        try:
            for step in steps:
                step()
                connection.ensure_connection()
                pid = connection.connection.info.backend_pid
                seen.append(tuple(os.getpriority(os.PRIO_PROCESS, who) for who in (0, pid)))
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return seen


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(os.getuid() != 0, reason="Only root may take the place of receivers again")
def test_a_thread_and_its_database_process_give_way_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(priority.PART, "default")
    assert nicenesses(
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 7),
        lambda: priority.take(False, connection),
        lambda: priority.take(True, connection),
    ) == [(7, 7), (15, 15), (0, 0)]


@pytest.mark.django_db(transaction=True)
def test_receivers_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(priority.PART, "web")
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert nicenesses(lambda: lags.give_way("digested")) == [(before, before)]


@pytest.mark.django_db
def test_lag_is_shown_and_what_is_late_gives_way_to_nobody(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[bool] = []
    monkeypatch.setenv(priority.PART, "ingest")
    monkeypatch.setattr(priority, "take", lambda is_late, _: late.append(is_late))
    project = make_project()
    ingest(project=project, rows=[row(name="a")])
    lags.give_way("digested")
    long_ago = timezone.now() - timedelta(seconds=lags.LATE_S + 5)
    Arrival.objects.update(at=long_ago)
    lags.give_way("assembled", "digested")
    assert late == [False, True]
    shown = client.get("/healthz").json()["lag_s"]
    assert shown["digested"] > lags.LATE_S and not shown["assembled"] and not shown["classified"]
    SpanBody.objects.create(project=project, signal="traces", data=b"", received_at=long_ago)
    Unclassified.objects.create(pk=project.trajectories.get().pk, project=project)
    Unclassified.objects.update(noted_at=long_ago)
    shown = client.get("/healthz").json()["lag_s"]
    assert shown.pop("judged") == 0  # by nobody
    assert min(shown.values()) > lags.LATE_S


@pytest.mark.django_db
def test_the_first_pass_over_a_project_is_late_too() -> None:
    project = make_project()
    assert classify_job.waiting_since() is None
    ingest(project=project, rows=[row(name="a")])
    digest()
    [since] = project.trajectories.values_list("received_at", flat=True)
    assert classify_job.waiting_since() == since
    job = classify_job.start(project=project, by=None)
    assert classify_job.waiting_since() == since
    runner.run(job)
    assert classify_job.waiting_since() is None
