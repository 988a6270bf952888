"""Small requests of one process that come at the same time share a transaction."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import transaction

from apps.core.models import Project
from apps.trajectories import digest, merging
from apps.trajectories.actions import deletions, store
from apps.trajectories.models import Arrival, HourlyCount, Trajectory
from tests.concurrent import Other
from tests.factories import make_project, row

pytestmark = pytest.mark.django_db(transaction=True)


def sent_together(project: Project, *rows: dict[str, Any]) -> list[store.Ingested]:
    """What each of the requests is answered; all come while the first one is being stored."""
    done: dict[int, store.Ingested] = {}

    def send(number: int) -> None:
        done[number] = store.ingest(project=project, rows=[rows[number]], together=True)

    with transaction.atomic():
        merging.wait_for_arrivals(project)  # whoever stores a new run waits from now on
        others = [Other(lambda: send(0))]
        others[0].wait_until_it_waits()
        for number in range(1, len(rows)):
            others.append(Other(lambda number=number: send(number)))
            while len(store._few[project.pk]._waiting) < number:
                time.sleep(0.01)
    for other in others:
        other.thread.join()
    for other in others:
        other.wait()
    return [done[number] for number in range(len(rows))]


def test_each_is_answered_for_its_own_row_and_stored_once() -> None:
    project = make_project()
    store.ingest(project=project, rows=[row(name="gone")])
    deletions.delete(trajectory=project.trajectories.get())
    digest.run()
    b = row(name="b")
    answers = sent_together(
        project,
        row(name="a"),
        b,
        row(name="gone"),
        b,
        b | {"latency_ms": 7.0},
        row(name="c"),
    )
    assert [
        (one.accepted, one.updated, one.duplicates, one.deleted, len(one.rejected))
        for one in answers
    ] == [
        (1, 0, 0, 0, 0),
        (1, 0, 0, 0, 0),
        (0, 0, 0, 1, 1),
        (0, 0, 1, 0, 0),
        (0, 1, 0, 0, 0),
        (1, 0, 0, 0, 0),
    ]
    assert answers[2].rejected[0]["index"] == 0
    assert Arrival.objects.count() == 2
    digest.run()
    assert set(project.trajectories.values_list("external_id", flat=True)) == {"a", "b", "c"}
    assert Trajectory.objects.get(external_id="b").latency_ms == 7.0
    assert sum(HourlyCount.objects.values_list("trajectories", flat=True)) == 3


def test_a_request_that_fails_fails_alone_and_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project, insert = make_project(), store._insert

    def refuse(project: Project, items: list[Any], *rest: Any) -> None:
        if any(item.name == "bad" for _, item in items):
            raise ValueError("bad")
        insert(project, items, *rest)

    monkeypatch.setattr(store, "_insert", refuse)
    with pytest.raises(ValueError, match="bad"):
        sent_together(project, row(name="a"), row(name="b"), row(name="bad"), row(name="c"))
    assert set(project.trajectories.values_list("external_id", flat=True)) == {"a", "b", "c"}
    digest.run()
    assert sum(HourlyCount.objects.values_list("trajectories", flat=True)) == 3
