"""What goes wrong on a job's way ends it at once with its cause; what only seems to go wrong ends
nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from apps.core import heartbeat, jobs, kinds, outbox, runner
from apps.core.kinds import ChildProcess
from apps.core.models import FIRST_RESEND, LAST_RESEND, JobLog, JobState
from apps.registry.models import ModelVersion
from apps.training.models import TrainingRun
from tests.core.conftest import ended, wait_for

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., TrainingRun]


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Training runs do something else."""

    def change(**what: Callable) -> None:
        kind = kinds._kinds[TrainingRun]
        assert isinstance(kind, ChildProcess)
        monkeypatch.setitem(kinds._kinds, TrainingRun, replace(kind, **what))

    return change


# What the database cannot hold


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("odd", ['"a\\u0000b"', '"\\ud800"', "NaN", "1e400", "1" * 5000])
def test_odd_values_of_a_model_end_no_job(submit: Submit, odd: str) -> None:
    event = (
        '{"type": "%s", "seq": %d, "level": "info", "message": %s, "adapter": "%s", "metrics":'
        ' {"x": %s}}'
    )
    run = submit(["raw", event % ("log", 1, odd, "", 0)], "finish")
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.SUCCEEDED, 1), run.error
    assert JobLog.objects.filter(job=run.pk).count() == 1


def test_odd_numbers_in_a_result_are_null(submit: Submit, does: Callable) -> None:
    does(complete=lambda run, result: {"metrics": result["metrics"]})
    run = submit(
        [
            "raw",
            '{"type": "result", "seq": 1, "metrics": {"loss": NaN, "n": 1e999, "text": "\\u0000"}}',
        ]
    )
    runner.run(run)
    run = ended(run)
    assert run.state == JobState.SUCCEEDED, run.error
    assert run.result == {"metrics": {"loss": None, "n": None, "text": "\ufffd"}}


def test_what_cannot_be_stored_fails_at_once_with_the_cause(submit: Submit) -> None:
    run = submit(["checkpoint", {"step": -1, "path": "/nowhere"}], "hang")
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.FAILED, 1)
    assert "database refused" in run.error and "step" in run.error


@pytest.mark.proof
def test_a_result_that_cannot_be_stored_fails_at_once_with_the_cause(
    submit: Submit, does: Callable
) -> None:
    def refused(run: TrainingRun, result: dict) -> dict:
        raise DataError("value too long for type character varying(120)")

    does(complete=refused)
    run = submit("finish")
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.FAILED, 1) and "value too long" in run.error


# A full disk


def is_due_in(run: TrainingRun) -> float:
    """Minutes until its message is sent."""
    return round((ended(run).resend_at - timezone.now()).total_seconds() / 60)


def test_a_job_whose_disk_is_full_waits_for_space_and_goes_on(submit: Submit) -> None:
    full = ["error", {"message": "The disk is full. Free some space.", "cause": "disk"}]
    run = submit(["checkpoint at", 3], full)
    for attempt in (1, 2):
        runner.run(run)
        run = ended(run)
        assert (run.state, run.attempt, is_due_in(run)) == (JobState.QUEUED, attempt, attempt)
        assert not TrainingRun.objects.unsent().exists()
    assert "queued again in 2 min" in JobLog.objects.filter(job=run.pk).last().message
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.FAILED, 3)
    assert run.error.startswith("The disk is full: free some space. It was tried 3 times.")


@pytest.mark.parametrize("step", ["child_spec", "complete"])
def test_so_does_one_whose_worker_finds_it_full(submit: Submit, does: Callable, step: str) -> None:
    real = getattr(kinds._kinds[TrainingRun], step)
    full = [True]

    def on_a_full_disk(*given: Any) -> Any:
        if full:
            full.clear()
            try:
                raise OSError(errno.ENOSPC, "No space left on device")
            except OSError as error:
                raise RuntimeError("The artifact could not be stored.") from error
        return real(*given)

    does(**{step: on_a_full_disk})
    run = submit("finish")
    runner.run(run)
    assert (ended(run).state, is_due_in(run)) == (JobState.QUEUED, 1)
    runner.run(ended(run))
    assert ended(run).state == JobState.SUCCEEDED and ended(run).model_version


# Answers that are lost


def losing_the_answer(real: Callable) -> Callable:
    """Does it, and the connection breaks before the answer comes: once."""
    lost: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = real(*args, **kwargs)
        ends = (
            any(event["type"] == "result" for event in args[1])
            if isinstance(args[1], list)
            else True
        )
        if ends and not lost:
            lost.append(True)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    return call


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("step", ["store", "complete"])
def test_a_commit_whose_answer_was_lost_is_no_failure(
    submit: Submit, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(runner, step, losing_the_answer(getattr(runner, step)))
    run = submit("finish")
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.SUCCEEDED, 1), run.error
    assert ModelVersion.objects.filter(made_by=run).count() == 1


def test_a_failure_whose_answer_was_lost_is_that_failure(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = jobs.end, []

    def end(*args: Any, **kwargs: Any) -> bool:
        answer = real(*args, **kwargs)
        if not lost:
            lost.append(True)
            raise OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(jobs, "end", end)
    run = submit("fail")
    runner.run(run)
    assert ended(run).error.startswith("The disk is full.")


# Heartbeats


def old_heartbeat() -> Callable[[], bool]:
    """Makes every heartbeat old; the call says whether one has come since."""
    TrainingRun.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    return lambda: not TrainingRun.objects.stale().exists()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("step", ["child_spec", "complete"])
def test_the_heart_beats_while_a_long_step_lasts(
    submit: Submit, does: Callable, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 0.05)
    real = getattr(kinds._kinds[TrainingRun], step)

    def long(*args: Any) -> dict:
        beaten = old_heartbeat() if step == "child_spec" else beating()
        wait_for(beaten)
        return real(*args)

    does(**{step: long})
    run = submit("finish")
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.SUCCEEDED, 1), run.error


def beating() -> Callable[[], bool]:
    """For a step inside of a transaction, which sees its own row as it was: whether a later
    heartbeat comes.
    """
    first = TrainingRun.objects.get().heartbeat_at
    return lambda: TrainingRun.objects.get().heartbeat_at > first


def test_a_reaper_whose_clock_is_wrong_reaps_nobody(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit("finish")
    run.claim("a worker that lives")
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(seconds=45))
    assert jobs.reap() == {"requeued": 0, "failed": 0, "resent": 0}
    assert ended(run).state == JobState.RUNNING


def test_a_heartbeat_that_comes_while_the_reaper_decides_saves_the_attempt(submit: Submit) -> None:
    run = submit("finish")
    run.claim("a slow worker")
    old_heartbeat()
    (stale,) = TrainingRun.objects.stale()
    run.beat()
    assert not jobs.retry_or_fail(stale, "It stopped answering.", TrainingRun.objects.stale())
    assert ended(run).state == JobState.RUNNING


# Messages


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    sent: list[str] = []
    monkeypatch.setattr(
        outbox.current_app, "send_task", lambda name, args, **_: sent.append(args[1])
    )
    yield sent


@pytest.mark.proof
def test_a_waiting_job_is_sent_again_less_and_less_often(
    data_dir: Any,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    broker: list[str],
) -> None:
    real = jobs.enqueue
    run = request.getfixturevalue("submit")("finish")
    monkeypatch.setattr(jobs, "enqueue", real)
    waits: list[timedelta] = []
    for turn in range(12):
        assert jobs.reap()["resent"] == 1
        assert jobs.reap()["resent"] == 0, "it has just been sent"
        assert len(broker) == turn + 1
        waits.append(ended(run).resend_at - now_of_database())
        TrainingRun.objects.update(resend_at=timezone.now() - timedelta(seconds=1))
    assert all(
        abs(wait - due) < timedelta(seconds=10)
        for wait, due in zip(waits, doubling(), strict=False)
    ), waits


def doubling() -> Iterator[timedelta]:
    wait = FIRST_RESEND
    while True:
        yield min(wait, LAST_RESEND)
        wait *= 2


def now_of_database() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return cursor.fetchone()[0]


def test_a_broker_that_is_away_loses_no_job(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, broker: list[str]
) -> None:
    real = jobs.enqueue
    run = request.getfixturevalue("submit")("finish")
    monkeypatch.setattr(jobs, "enqueue", real)

    def away(*_: Any, **__: Any) -> None:
        raise BrokerError("no broker")

    with monkeypatch.context() as patch:
        patch.setattr(outbox.current_app, "send_task", away)
        jobs.reap()
    TrainingRun.objects.update(resend_at=timezone.now() - timedelta(seconds=1))
    jobs.reap()
    assert broker == [str(run.pk)]
