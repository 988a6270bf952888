"""What can wait rests while receivers are busy, and no longer than it is late."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import Client
from django.utils import timezone

from apps.core import lags, middleware
from apps.failures import classify_job
from apps.failures.classify import RULES_VERSION
from apps.failures.models import Classifier, Unclassified
from apps.trajectories import tasks
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Arrival
from flywheel import priority, receiving
from flywheel.receiving import BUSY_FOR_S, Receivers
from tests.factories import make_project, row


def test_receivers_are_busy_while_requests_leave_few_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    clock = SimpleNamespace(monotonic=lambda: now, time=lambda: now)
    monkeypatch.setattr(receiving, "time", clock)
    path = tmp_path / "receiving"
    touched = SimpleNamespace(touch=lambda: path.write_text(str(now)))
    touched.stat = lambda: SimpleNamespace(st_mtime=float(path.read_text()))
    here, elsewhere = Receivers(touched), Receivers(touched)
    assert not here.are_busy()
    for _ in range(10):  # a tenth of the time
        now += 0.1
        here.worked(now - 0.01)
    assert not here.are_busy()
    for _ in range(10):
        now += 0.1
        here.worked(now - 0.09)
    assert here.are_busy() and elsewhere.are_busy()
    now += BUSY_FOR_S
    assert not here.are_busy()
    assert not Receivers(tmp_path / "none" / "receiving").are_busy()


@pytest.mark.django_db
def test_work_rests_until_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(priority.PART, "ingest")
    busy = [True]
    monkeypatch.setattr(lags, "receivers", SimpleNamespace(are_busy=lambda: busy[0]))
    monkeypatch.setattr(lags, "give_way", lambda *names: None)
    seconds = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)), sleep=lambda _: None)
    monkeypatch.setattr(tasks, "time", clock)
    project = make_project()
    Classifier.objects.create(project=project, rules=RULES_VERSION)
    ingest(project=project, rows=[row(name="a")])

    tasks.digest()
    assert Arrival.objects.exists()
    long_ago = timezone.now() - timedelta(seconds=lags.LATE_S + 5)
    Arrival.objects.update(at=long_ago)
    tasks.digest()
    assert not Arrival.objects.exists() and Unclassified.objects.exists()

    assert not classify_job.classify_new(project, for_s=9.0) and Unclassified.objects.exists()
    busy[0] = False
    assert classify_job.classify_new(project, for_s=9.0) == 1


@pytest.mark.django_db
def test_what_agents_send_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[float] = []
    monkeypatch.setattr(middleware, "receivers", SimpleNamespace(worked=worked.append))
    client.post("/v1/traces")
    client.get("/api/v1/trajectories/")
    client.get("/login/")
    assert len(worked) == 1
