"""Jobs that a worker does itself, step by step: each step and its progress are one transaction."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from apps.core import jobs, kinds, patience, runner
from apps.core.kinds import InProcess, Progress
from apps.core.models import JobLog, JobState
from apps.training.models import TrainingRun
from tests.core.conftest import ended, wait_for

pytestmark = pytest.mark.django_db(transaction=True)
N = 4
Steps = Generator[Progress, None, dict]


@pytest.fixture
def job(submit: Callable[..., TrainingRun]) -> TrainingRun:
    return submit()


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], None]:
    """Before each of the N steps something happens; each step leaves a line in the log."""

    def change(before: Callable[[TrainingRun, int], None] = lambda job, n: None) -> None:
        def steps(job: TrainingRun) -> Steps:
            for n in range(job.cursor.get("next", 0), N):
                JobLog.objects.create(job=job.pk, attempt=job.attempt, seq=n, message=f"step {n}")
                before(job, n)
                yield Progress(done=n + 1, total=N, label=f"{n + 1}", cursor={"next": n + 1})
            JobLog.objects.create(job=job.pk, attempt=job.attempt, seq=N, message="end")
            before(job, N)
            return {"attempt": job.attempt}

        monkeypatch.setitem(kinds._kinds, TrainingRun, InProcess(queue="default", steps=steps))

    return change


def lines(job: TrainingRun) -> list[str]:
    return list(
        JobLog.objects.filter(job=job.pk, seq__lte=N)
        .order_by("id")
        .values_list("message", flat=True)
    )


ALL = [*(f"step {n}" for n in range(N)), "end"]


def test_from_the_first_step_to_the_last(job: TrainingRun, does: Callable) -> None:
    does()
    runner.run(job)
    job = ended(job)
    assert (job.state, job.done, job.total, job.label) == (JobState.SUCCEEDED, N, N, "4")
    assert job.result == {"attempt": 1} and lines(job) == ALL


def test_an_error_fails_the_job_at_once_and_undoes_its_step(
    job: TrainingRun, does: Callable
) -> None:
    def broken(job: TrainingRun, n: int) -> None:
        if n == 2:
            raise ValueError("Row 7 is odd.")

    does(broken)
    runner.run(job)
    job = ended(job)
    assert (job.state, job.error, job.done, job.attempt) == (JobState.FAILED, "Row 7 is odd.", 2, 1)
    assert lines(job) == ALL[:2]


def test_the_end_is_stored_with_the_last_work_or_not_at_all(
    job: TrainingRun, does: Callable
) -> None:
    def broken(job: TrainingRun, n: int) -> None:
        if n == N:
            raise ValueError("The end is odd.")

    does(broken)
    runner.run(job)
    assert ended(job).state == JobState.FAILED and lines(job) == ALL[:N]


def test_a_cancel_is_heard_between_steps(job: TrainingRun, does: Callable) -> None:
    does(
        lambda job, n: jobs.cancel(TrainingRun.objects.get(pk=job.pk), by=None) if n == 1 else None
    )
    runner.run(job)
    assert ended(job).state == JobState.CANCELLED and lines(job) == ALL[:2]


def test_a_step_of_one_who_lost_the_job_is_undone(job: TrainingRun, does: Callable) -> None:
    does(lambda job, n: TrainingRun.objects.update(attempt=7) if n == 1 else None)
    runner.run(job)
    # The update that took the job away is in the step's own transaction here, and so it is undone,
    # too.
    job = ended(job)
    assert job.state == JobState.RUNNING and job.done == 1 and lines(job) == ALL[:1]


def test_a_break_of_the_database_repeats_the_step_only(
    job: TrainingRun, does: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: None)
    broken: list[int] = []

    def breaks(job: TrainingRun, n: int) -> None:
        if n in (0, 2, N) and n not in broken:
            broken.append(n)
            raise OperationalError("server closed the connection unexpectedly")

    does(breaks)
    runner.run(job)
    job = ended(job)
    assert (
        (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
        and lines(job) == ALL
        and broken == [0, 2, N]
    )


def test_a_lost_answer_to_the_last_commit_is_no_failure(
    job: TrainingRun, does: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: None)
    does()
    real, lost = runner.step, []

    def step(*args: Any) -> tuple[bool, Any]:
        goes_on, returned = real(*args)
        if not goes_on and not lost:
            lost.append(True)
            raise OperationalError("server closed the connection unexpectedly")
        return goes_on, returned

    monkeypatch.setattr(runner, "step", step)
    runner.run(job)
    assert lost and ended(job).state == JobState.SUCCEEDED and lines(job) == ALL


def test_what_takes_long_is_done_outside_of_the_steps_transaction(
    job: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def asks() -> str:
        seen.append((connection.in_atomic_block, ended(job).done))
        return "answer"

    def steps(job: TrainingRun) -> Steps:
        answer = yield Progress(done=1, outside=asks)
        return {"answer": answer}

    monkeypatch.setitem(kinds._kinds, TrainingRun, InProcess(queue="default", steps=steps))
    runner.run(job)
    assert ended(job).result == {"answer": "answer"} and seen == [(False, 1)]


def test_a_killed_worker_is_followed_by_one_that_goes_on(job: TrainingRun, does: Callable) -> None:
    does(
        lambda job, n: os.kill(os.getpid(), signal.SIGKILL) if n == 2 and job.attempt == 1 else None
    )
    pid = os.fork()
    if pid == 0:  # the worker
        connection.close()
        try:
            runner.run(TrainingRun.objects.get(pk=job.pk))
        finally:
            os._exit(0)
    connection.close()
    os.waitpid(pid, 0)
    wait_for(lambda: ended(job).done == 2)
    TrainingRun.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert jobs.reap()["requeued"] == 1
    runner.run(ended(job))
    job = ended(job)
    assert (job.state, job.result, lines(job)) == (JobState.SUCCEEDED, {"attempt": 2}, ALL)
