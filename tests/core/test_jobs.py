"""The job's way, with real child processes: claim, events, cancel, kills, the reaper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from apps.core import child, jobs, runner
from apps.core.models import JobLog, JobState
from apps.registry.models import ModelVersion
from apps.training.models import TrainingRun
from tests.core.conftest import ended, in_thread, terminate, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_good_run_makes_one_version(submit: Callable[..., TrainingRun]) -> None:
    run = submit(
        ["progress", {"done": 1, "total": 2, "label": "half"}],
        ["metric", {"step": 1, "values": {"train/loss": 0.5}}],
        "checkpoint",
        ["log", {"level": "info", "message": "hello"}],
        "finish",
    )
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.SUCCEEDED, run.error
    assert (run.done, run.total, run.label) == (1, 2, "half")
    assert run.metrics.get().value == 0.5
    assert run.checkpoints.get().step == 1
    assert JobLog.objects.get(job=run.pk).message == "hello"
    version = run.model_version
    assert (
        version is not None
        and version.lineage["run"] == str(run.pk)
        and version.parent == run.parent
    )


def test_only_one_of_two_workers_gets_it(submit: Callable[..., TrainingRun]) -> None:
    run = submit("finish")
    won: list[bool] = []

    def claim() -> None:
        won.append(TrainingRun.objects.get(pk=run.pk).claim("worker"))
        connection.close()

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_an_event_is_stored_once(submit: Callable[..., TrainingRun]) -> None:
    line = ["log", {"level": "info", "message": "once", "seq": 1}]
    run = submit(line, line, line, "finish")
    runner.run(run)
    assert JobLog.objects.filter(job=run.pk).count() == 1


@pytest.mark.proof
def test_an_error_of_the_program_is_said_on_the_page(submit: Callable[..., TrainingRun]) -> None:
    run = submit("checkpoint", "fail")
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.FAILED and run.error.startswith("The disk is full.")
    assert run.checkpoints.exists()


def test_a_killed_child_is_resumed_from_its_checkpoint(submit: Callable[..., TrainingRun]) -> None:
    run = submit("checkpoint", "die unless resumed", "finish")
    runner.run(run)
    assert ended(run).state == JobState.QUEUED
    assert "SIGKILL" in JobLog.objects.filter(job=run.pk).last().message
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.SUCCEEDED and run.attempt == 2


def test_a_child_that_is_always_killed_fails_with_a_sentence(
    submit: Callable[..., TrainingRun],
) -> None:
    run = submit("checkpoint", "die")
    for _ in range(run.max_attempts):
        runner.run(ended(run))
    run = ended(run)
    assert run.state == JobState.FAILED
    assert (
        "killed (SIGKILL)" in run.error
        and "3 times" in run.error
        and "checkpoint is kept: the run can be resumed" in run.error
    )


def test_cancel_asks_first(submit: Callable[..., TrainingRun]) -> None:
    run = submit(["log", {"message": "started"}], "hang")
    thread = in_thread(run)
    wait_for(lambda: JobLog.objects.filter(job=run.pk).exists())
    time.sleep(0.2)
    assert jobs.cancel(ended(run), by=None)
    thread.join(300)
    assert ended(run).state == JobState.CANCELLED


@pytest.mark.proof
def test_cancel_kills_what_does_not_listen(
    submit: Callable[..., TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CANCEL_GRACE_S", 0.5)
    run = submit("stubborn")
    thread = in_thread(run)
    wait_for(lambda: JobLog.objects.filter(job=run.pk).exists())
    jobs.cancel(ended(run), by=None)
    thread.join(300)
    assert ended(run).state == JobState.CANCELLED


def test_a_queued_job_is_cancelled_at_once(submit: Callable[..., TrainingRun]) -> None:
    run = submit("finish")
    jobs.cancel(run, by=None)
    assert ended(run).state == JobState.CANCELLED
    runner.run(run)
    assert ended(run).state == JobState.CANCELLED


def test_the_reaper_takes_over_from_a_dead_worker(submit: Callable[..., TrainingRun]) -> None:
    run = submit("finish")
    run.claim("a worker that died")
    TrainingRun.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert jobs.reap()["requeued"] == 1
    assert ended(run).state == JobState.QUEUED
    runner.run(run)
    assert ended(run).state == JobState.SUCCEEDED


def test_a_runner_that_lost_the_job_writes_nothing(submit: Callable[..., TrainingRun]) -> None:
    run = submit(["log", {"message": "started"}], "hang", "finish")
    thread = in_thread(run)
    wait_for(lambda: JobLog.objects.filter(job=run.pk).exists())
    TrainingRun.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    TrainingRun.objects.filter(pk=run.pk).update(attempt=7)  # another attempt took over
    thread.join(300)
    assert not thread.is_alive()
    assert (
        ended(run).state == JobState.RUNNING
        and not ModelVersion.objects.filter(made_by=run).exists()
    )


def test_a_lost_message_is_sent_again(
    submit: Callable[..., TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(jobs, "enqueue", lambda job: sent.append(str(job.pk)))
    run = submit("finish")
    sent.clear()
    TrainingRun.objects.update(resend_at=timezone.now() - timedelta(minutes=1))
    assert jobs.reap()["resent"] == 1
    assert sent == [str(run.pk)]


def test_a_missing_model_folder_is_said(submit: Callable[..., TrainingRun]) -> None:
    run = submit("finish")
    ModelVersion.objects.update(base="/nowhere/model", digest="0" * 64)
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.FAILED
    assert run.error.startswith("The model folder /nowhere/model is missing, and no folder under ")


def test_the_child_knows_no_secret(
    submit: Callable[..., TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    monkeypatch.setenv("DATABASE_URL", "postgres://x")
    monkeypatch.setenv("FLYWHEEL_SANDBOX_COMMAND", "bwrap")
    run = submit("environment", "finish")
    runner.run(run)
    names = set(json.loads(JobLog.objects.get(job=run.pk).message))
    assert "FLYWHEEL_SANDBOX_COMMAND" in names  # code is run there as it is in the web process
    assert not names & {"SECRET_KEY", "DATABASE_URL", "BROKER_URL", "FLYWHEEL_API_KEY"}


@pytest.fixture
def killed_worker(submit: Callable[..., TrainingRun]) -> Iterator[tuple[TrainingRun, int]]:
    """A run whose worker process was killed, and the pid of the child it had started."""
    run = submit(["log", {"message": "started"}], "hang", "finish")
    pid = os.fork()
    if pid == 0:  # the worker
        connection.close()
        try:
            runner.run(TrainingRun.objects.get(pk=run.pk))
        finally:
            os._exit(0)
    connection.close()
    wait_for(lambda: JobLog.objects.filter(job=run.pk).exists())
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    yield run, int(found[0])


@pytest.mark.proof
def test_a_killed_worker_takes_its_child_along(killed_worker: tuple[TrainingRun, int]) -> None:
    run, child = killed_worker

    def gone() -> bool:
        status = Path(f"/proc/{child}/status")
        return not status.exists() or "Z (zombie)" in status.read_text()

    wait_for(gone)
    assert ended(run).state == JobState.RUNNING
    TrainingRun.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    jobs.reap()
    assert ended(run).state == JobState.QUEUED


def test_the_database_may_go_away_for_a_while(
    submit: Callable[..., TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are cut in the middle: the runner tries again and no event is lost."""
    run = submit(*[["log", {"message": f"line {i}"}] for i in range(200)], "finish")
    real, cut = runner.store, []

    def store(*args: Any) -> bool:
        if not cut:
            cut.append(True)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pid = cursor.fetchone()[0]
            terminate(pid)
        return real(*args)

    monkeypatch.setattr(runner, "store", store)
    runner.run(run)
    assert ended(run).state == JobState.SUCCEEDED
    assert JobLog.objects.filter(job=run.pk).count() == 200
