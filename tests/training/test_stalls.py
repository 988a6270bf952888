"""A run that says nothing for much longer than its steps take raises the alarm though it cannot say
so itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings

from apps.core.models import JobLog, JobState
from apps.notifications.models import Notification
from apps.training import stalls, tasks
from apps.training.models import Metric, TrainingRun
from tests.core.conftest import ended

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
Train = Callable[..., TrainingRun]


@pytest.fixture
def train(submit: Callable[..., TrainingRun]) -> Train:
    """A run whose steps took `step` seconds each, the last of them `quiet` seconds ago."""

    def make(
        quiet: float, step: float = 100.0, steps: int = 8, alarms: dict | None = None
    ) -> TrainingRun:
        run = submit()
        run.claim(worker="w")
        last = NOW - timedelta(seconds=quiet)
        times = [last - timedelta(seconds=step * back) for back in range(steps)]
        Metric.objects.bulk_create(
            Metric(run=run, name="train/loss", step=steps - back, value=1.0, at=at)
            for back, at in enumerate(times)
        )
        run.spec["config"] = {"alarms": alarms or {}}
        run.started_at = min([last, *times]) - timedelta(seconds=1)
        run.done = steps
        run.save()
        return run

    return make


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"quiet": 900}, []),
        ({"quiet": 1100}, ["warn"]),
        ({"quiet": 3100}, ["pause"]),
        ({"quiet": 500, "step": 1}, []),  # a step counts as a minute at least
        ({"quiet": 700, "step": 1}, ["warn"]),
        ({"quiet": 20_000, "step": 3000}, []),  # whose steps are long
        ({"quiet": 2000, "steps": 2}, []),  # it has barely begun
        ({"quiet": 4000, "steps": 0}, ["warn"]),
        ({"quiet": 3100, "alarms": {"stall": {"action": "warn"}}}, ["warn"]),
        ({"quiet": 3100, "alarms": {"stall": {"action": "ignore"}}}, []),
        ({"quiet": 250, "alarms": {"stall": {"warn": 2.0, "act": 5.0}}}, ["warn"]),
    ],
)
def test_silence_is_judged_by_its_own_steps(
    train: Train, given: dict[str, Any], expected: list[str]
) -> None:
    run = train(**given)
    assert stalls.watch(NOW) == len(expected)
    assert list(run.alarms.values_list("action", flat=True)) == expected


def test_it_is_said_once_and_goes_when_the_run_speaks_again(train: Train) -> None:
    run = train(quiet=1100)
    assert [stalls.watch(NOW), stalls.watch(NOW + timedelta(minutes=1))] == [1, 1]
    assert run.alarms.get().message.endswith(
        "No output for 18 minutes; a step usually takes 100 s."
    )
    assert Notification.objects.filter(topic="training.alarm").count() == 1
    JobLog.objects.create(job=run.pk, attempt=1, seq=5, message="Validating.", at=NOW)
    assert stalls.watch(NOW + timedelta(minutes=2)) == 0 and run.alarms.get().cleared_step == 8


def test_a_pause_ends_it_as_a_cancel_does_and_it_can_be_resumed(train: Train) -> None:
    run = train(quiet=3100)
    stalls.watch(NOW)
    run = ended(run)
    assert (
        run.state == JobState.RUNNING
        and run.cancel_requested_at
        and run.result["paused"]["alarm"] == "stall"
    )
    assert stalls.watch(NOW + timedelta(hours=1)) == 0 and run.alarms.count() == 1


def test_a_stop_fails_it(train: Train) -> None:
    run = train(quiet=3100, alarms={"stall": {"action": "stop"}})
    stalls.watch(NOW)
    run = ended(run)
    assert run.state == JobState.FAILED and "No output for 52 minutes" in run.error


def test_who_has_ended_is_left_alone(train: Train) -> None:
    run = train(quiet=3100)
    TrainingRun.objects.filter(pk=run.pk).update(state=JobState.CANCELLED, finished_at=NOW)
    assert stalls.watch(NOW) == 0
    TrainingRun.objects.filter(pk=run.pk).update(state=JobState.QUEUED, finished_at=None)
    assert stalls.watch(NOW) == 0 and not run.alarms.exists()


def test_the_beat_asks_every_minute() -> None:
    assert settings.CELERY_BEAT_SCHEDULE["watch_training"] == {
        "task": tasks.watch.name,
        "schedule": 60.0,
    }
