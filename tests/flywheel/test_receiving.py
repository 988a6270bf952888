"""What can wait rests while receivers are busy, and no longer than it is late."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.conf import settings
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
from flywheel.receiving import Processors, Receivers
from tests.factories import make_project, row

JOIN = """
import sys
from pathlib import Path
from flywheel.receiving import Receivers
Receivers(Path(sys.argv[1])).join()
print("joined", flush=True)
sys.stdin.read()
"""


def test_what_a_process_says_is_seen_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(receiving, "time", SimpleNamespace(monotonic=lambda: now))
    path = tmp_path / "receiving"
    here, worker = Receivers(path), Receivers(path)
    here.join()

    def answers(under_way: float) -> list[bool]:
        """Whether connections were told to close in a second of ten rounds."""
        nonlocal now
        told = []
        for _ in range(10):
            now += 0.1
            told.append(here.worked(now - 0.1 * under_way))
        return told

    assert not worker.are_busy() and not any(answers(0.1)) and not worker.are_busy()
    assert not any(answers(4.0)) and worker.are_busy()  # nobody could take over
    other = subprocess.Popen(
        [sys.executable, "-c", JOIN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=settings.BASE_DIR,
    )
    assert other.stdout is not None and other.stdout.readline() == b"joined\n"
    assert 1 <= sum(answers(4.0)) <= 4
    answers(1.4)
    assert not any(answers(1.4))
    other.kill()
    other.wait()
    assert not any(answers(4.0))
    now += receiving.FRESH_S
    assert not worker.are_busy()
    assert not Receivers(tmp_path / "none" / "receiving").are_busy()


def test_idle_processors_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(receiving, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(receiving.os, "cpu_count", lambda: 4)
    (tmp_path / "proc").mkdir()
    processors = Processors(tmp_path)

    def idle_after(user: int, nice: int, idle: int, waiting: int) -> float:
        nonlocal now
        now += 1.0
        line = f"cpu  {user} {nice} 5 {idle} {waiting} 0 0 0 0 0\ncpu0 1 2 3\n"
        (tmp_path / "proc/stat").write_text(line)
        return processors.idle()

    assert idle_after(100, 50, 1000, 40) == 0.0  # since when is not known
    assert idle_after(150, 60, 1030, 50) == 1.6  # 40 of 100 ticks
    now -= 0.9
    assert idle_after(160, 60, 1030, 50) == 1.6  # too soon to say anything new
    assert idle_after(250, 60, 1030, 50) == 0.0
    limit = tmp_path / "sys/fs/cgroup/cpu.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("max 100000\n")
    assert idle_after(250, 60, 1130, 50) == 4.0
    limit.write_text("200000 100000\n")
    assert idle_after(250, 60, 1230, 50) == idle_after(250, 60, 1330, 50) == 0.0
    assert Processors(tmp_path / "none").idle() == 0.0


@pytest.mark.django_db
def test_work_goes_on_beside_busy_receivers_where_processors_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(priority.PART, "ingest")
    monkeypatch.setattr(lags, "receivers", SimpleNamespace(are_busy=lambda: True))
    monkeypatch.setattr(lags, "processors", SimpleNamespace(idle=lambda: lags.SPARE))
    monkeypatch.setattr(lags, "give_way", lambda *names: None)
    ingest(project=make_project(), rows=[row(name="a")])
    monkeypatch.setattr(tasks, "LINGER_S", 0.1)
    tasks.digest()
    assert not Arrival.objects.exists()


@pytest.mark.django_db
def test_work_rests_until_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(priority.PART, "ingest")
    busy = [True]
    monkeypatch.setattr(lags, "processors", SimpleNamespace(idle=lambda: 0.0))
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
    moves = iter([False, True])
    monkeypatch.setattr(middleware, "receivers", SimpleNamespace(worked=lambda _: next(moves)))
    answers = [client.post("/v1/traces"), client.get("/api/v1/trajectories/")]
    answers += [client.get("/login/"), client.post("/v1/logs")]
    assert [answer.get("Connection") for answer in answers] == [None, None, None, "close"]
