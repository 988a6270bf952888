"""The schedule, where a machine's clock is set back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.beat import event_t
from django.conf import settings
from django_celery_beat import schedulers
from django_celery_beat.models import PeriodicTask

from flywheel.beat import Scheduler
from flywheel.celery import app

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that are sent."""
    found: list[str] = []

    def send(_: Scheduler, entry: Any, **__: Any) -> None:
        found.append(entry.task)

    monkeypatch.setattr(Scheduler, "apply_async", send)
    # The connection of the test is in a transaction.
    monkeypatch.setattr(schedulers, "close_old_connections", lambda: None)
    return found


def rounds(scheduler: Scheduler) -> None:
    """Until nothing is due, and once more, as after a pause."""
    for _ in range(2):
        for _ in range(3 * len(settings.CELERY_BEAT_SCHEDULE)):
            scheduler.tick()


def ours(sent: list[str]) -> set[str]:
    return {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} & {*sent}


@pytest.mark.parametrize("is_started_again", [True, False])
def test_all_is_sent_after_the_clock_was_an_hour_ahead(
    sent: list[str], is_started_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(app=app)
    rounds(scheduler)
    ahead = datetime.now(UTC) + timedelta(hours=1)
    if is_started_again:
        PeriodicTask.objects.update(last_run_at=ahead)
        scheduler = Scheduler(app=app)
    else:
        with monkeypatch.context() as clock:
            clock.setattr(schedulers.ModelEntry, "_default_now", lambda _: ahead)
            entries = [scheduler.reserve(entry) for entry in scheduler.schedule.values()]
        scheduler._heap = [event_t(ahead.timestamp(), 5, entry) for entry in entries]
    sent.clear()
    rounds(scheduler)
    assert len(ours(sent)) == len(settings.CELERY_BEAT_SCHEDULE)
    sent.clear()
    rounds(scheduler)
    assert ours(sent) == set()
    scheduler.sync()
    assert not PeriodicTask.objects.filter(last_run_at__gt=datetime.now(UTC)).exists()
