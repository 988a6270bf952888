"""A round of the schedule (beat) with many projects."""

from __future__ import annotations

import pytest

from apps.core.tasks import reap
from apps.trajectories import tasks
from apps.trajectories.models import Alert
from bench import many_projects
from flywheel import alive

pytestmark = pytest.mark.django_db


def statements() -> dict[str, int]:
    """Of a round in which nothing is left to do, by task."""
    return {name: cost["statements"] for name, cost in many_projects.rounds().items()}


def test_a_round_sends_as_many_statements_for_six_projects_as_for_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "LINGER_S", 0.0)  # it looks again and again for what comes
    many_projects.make(2)
    few = statements()
    assert Alert.objects.exclude(value=None).count() == 6  # three each, and they measure something
    many_projects.make(6)
    assert statements() == few


def test_a_queue_that_is_minutes_behind_does_not_keep_the_reaper_from_running() -> None:
    assert reap.expires > alive.EXPIRES_S[alive.BEAT]
