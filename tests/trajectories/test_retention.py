from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import Sum

from apps.core.locks import Lock
from apps.core.models import AuditEvent, Project
from apps.evals.models import Split, Task
from apps.trajectories import digest, partitions
from apps.trajectories.actions.deletions import purge
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Facet, HourlyCount, Tombstone
from apps.trajectories.retention import enforce, set_retention
from tests.factories import (
    admin_of,
    make_eval_set,
    make_failed,
    make_project,
    row,
    task_from_trajectory,
)

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)
CALL = {"tool": "tickets.close", "args": {"id": 1}}


def sent(project: Project, *days: int, restore: bool = False) -> None:
    rows = [row(name=f"{n} days", started_at=(NOW - timedelta(days=n)).isoformat()) for n in days]
    assert ingest(project=project, rows=rows, restore=restore).accepted == len(days)


def names(project: Project) -> list[str]:
    return [item.external_id for item in project.trajectories.order_by("-pk")]


def test_only_what_is_too_old_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.trajectories.retention.AT_ONCE", 2)
    project, other = make_project(), make_project()
    for owner in (project, other):
        sent(owner, 1, 29, 31, 40, 400, 4000)
    set_retention(project=project, days=30, by=admin_of(project))
    assert enforce(NOW) == 4 and enforce(NOW) == 0
    assert names(project) == ["1 days", "29 days"] and len(names(other)) == 6
    digest.run()
    assert HourlyCount.objects.filter(project=project).aggregate(n=Sum("trajectories"))["n"] == 2
    assert (
        AuditEvent.objects.filter(project=project, action="retention.enforced")
        .get()
        .detail["removed"]
        == 4
    )
    set_retention(project=project, days=None, by=admin_of(project))
    assert enforce(NOW + timedelta(days=1000)) == 0


def test_eval_tasks_stay() -> None:
    project = make_project()
    failed = make_failed(project, expected=CALL, started_at="2026-01-01T00:00:00Z")
    eval_set = make_eval_set(project, 1, 1, frozen=False)
    task_from_trajectory(
        eval_set=eval_set, trajectory=failed, split=Split.TRAIN, by=admin_of(project)
    )
    set_retention(project=project, days=30, by=admin_of(project))
    assert enforce(NOW) == 1
    task = Task.objects.get(origin="failure")
    assert task.trajectory is None and task.messages


@pytest.mark.parametrize("days", [0, -1, 100_000])
def test_nonsense_is_refused(days: int) -> None:
    project = make_project()
    with pytest.raises(ValueError, match="days"):
        set_retention(project=project, days=days, by=admin_of(project))


def months() -> set[str]:
    return {f"{month:%Y_%m}" for month in partitions.months()}


@pytest.mark.django_db(transaction=True)
def test_months_that_were_emptied_lose_their_partitions_and_get_them_back() -> None:
    project = make_project()
    sent(project, 1, 400)
    old = f"{NOW - timedelta(days=400):%Y_%m}"
    assert partitions.drop_empty(NOW) == [] and old in months()  # it holds a row
    purge(project, project.trajectories.filter(external_id="400 days"))
    before = months()
    assert old in partitions.drop_empty(NOW)
    assert months() == {
        month for month in before if month >= f"{NOW - timedelta(days=62):%Y_%m}"
    } - {old}
    sent(project, 400, restore=True)
    assert old in months() and names(project) == ["1 days", "400 days"]


@pytest.mark.django_db(transaction=True)
def test_a_month_that_is_written_to_is_left_for_the_next_time() -> None:
    project = make_project()
    sent(project, 400)
    purge(project, project.trajectories.all())
    writer = connection.copy()
    try:
        with writer.cursor() as cursor:
            writer.set_autocommit(False)
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [Lock.OLD_MONTHS])
            assert partitions.drop_empty(NOW) == []
            writer.rollback()
    finally:
        writer.close()
    assert partitions.drop_empty(NOW)


@pytest.mark.django_db(transaction=True)
def test_a_month_of_which_nobody_keeps_anything_goes_with_its_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project, other = make_project(), make_project()
    at = (NOW - timedelta(days=400)).replace(day=15)
    old, rows = f"{at:%Y_%m}", [row(name=f"old {n}", started_at=at.isoformat()) for n in range(5)]
    assert ingest(project=project, rows=rows).accepted == 5
    failed = make_failed(project, name="failed", expected=CALL, started_at=at.isoformat())
    assert ingest(project=other, rows=rows).accepted == 5
    sent(project, 1)
    while digest.step():
        pass
    for owner, days in ((project, 30), (other, 4_000)):
        set_retention(project=owner, days=days, by=admin_of(owner))
    assert enforce(NOW) == 6 and old in months()  # the other keeps its runs
    assert names(project) == ["1 days"] and len(names(other)) == 5
    assert ingest(project=project, rows=rows[:1]).deleted == 1
    set_retention(project=other, days=30, by=admin_of(other))
    monkeypatch.setattr("apps.trajectories.retention.OF_MONTH_AT_ONCE", 2)
    deleted_from = []
    plain = partitions.drop_removed
    monkeypatch.setattr(
        partitions, "drop_removed", lambda month: deleted_from.append(names(other)) or plain(month)
    )
    assert enforce(NOW) == 5 and old not in months()
    assert len(deleted_from[-1]) == 5  # no row was deleted by itself
    assert not names(other) and not Tombstone.objects.filter(project=other).count() < 5
    while digest.step():
        pass
    counted = HourlyCount.objects.filter(trajectories__gt=0)
    assert [(count.project_id, count.trajectories) for count in counted] == [(project.pk, 1)]
    assert not Facet.objects.filter(project=other).exists()
    assert ingest(project=other, rows=rows).deleted == 5 and failed


@pytest.mark.django_db(transaction=True)
def test_of_a_month_that_is_in_use_the_rows_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project()
    sent(project, 400)
    while digest.step():
        pass
    set_retention(project=project, days=30, by=admin_of(project))
    monkeypatch.setattr(partitions, "drop_removed", lambda month: False)
    assert enforce(NOW) == 1 and not names(project)
    while digest.step():
        pass
    assert not HourlyCount.objects.exclude(trajectories=0).exists()
