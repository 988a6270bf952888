"""Two requests that delete the same trajectories, and what else happens at the same time as the
digest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Sum

from apps.core import locks
from apps.core.models import AuditEvent, Project
from apps.trajectories import digest
from apps.trajectories import models as said
from apps.trajectories.actions import bulk, deletions, feedback, store
from apps.trajectories.models import Facet, HourlyCount, Trajectory, TrajectoryKey
from apps.trajectories.schema import Feedback
from tests.concurrent import Other
from tests.factories import admin_of, make_project, row

pytestmark = pytest.mark.django_db(transaction=True)


def single(project: Project, pk: Any) -> None:
    deletions.delete(trajectory=Trajectory.objects.get(pk=pk))


def in_bulk(project: Project, pk: Any) -> None:
    bulk.delete(project=project, ids=[pk], by=None)


def purge(project: Project, pk: Any) -> None:
    deletions.purge(project, [Trajectory.objects.get(pk=pk)])


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("first", [single, in_bulk])
@pytest.mark.parametrize("second", [single, in_bulk, purge])
def test_two_deletions_of_one_trajectory_are_counted_once(
    first: Callable, second: Callable
) -> None:
    project = make_project()
    store.ingest(project=project, rows=[row(), row()])
    digest.run()
    pk = project.trajectories.first().pk
    with transaction.atomic():
        first(project, pk)
        other = Other(lambda: second(project, pk))
        other.wait_until_it_waits()
    other.wait()
    digest.run()
    assert project.trajectories.count() == 1
    assert HourlyCount.objects.filter(project=project).aggregate(n=Sum("trajectories"))["n"] == 1
    assert set(Facet.objects.filter(project=project).values_list("trajectories", flat=True)) == {1}
    assert AuditEvent.objects.filter(action="trajectory.deleted").count() <= 1


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("delete", [single, in_bulk, purge])
def test_a_resend_that_waits_for_the_deletion_is_refused(delete: Callable) -> None:
    project = make_project()
    store.ingest(project=project, rows=[row("a")])
    with transaction.atomic():
        delete(project, project.trajectories.get().pk)
        other = Other(lambda: store.ingest(project=project, rows=[row("a")]))
        other.wait_until_it_waits()
    other.wait()
    assert (
        not project.trajectories.exists()
        and not TrajectoryKey.objects.filter(project=project).exists()
    )


@pytest.mark.parametrize("by_page", [False, True])
def test_feedback_that_waits_for_the_deletion_is_refused(by_page: bool) -> None:
    project = make_project()
    store.ingest(project=project, rows=[row("a")])
    run, news = project.trajectories.get(), Feedback(comment="Wrong")
    with transaction.atomic():
        single(project, run.pk)
        other = Other(
            (lambda: feedback.give(trajectory=run, news=news, by=admin_of(project)))
            if by_page
            else lambda: feedback.receive(project=project, external_id="a", news=news)
        )
        other.wait_until_it_waits()
    with pytest.raises(feedback.DeletedError, match="was deleted on"):
        other.wait()
    assert not said.Feedback.objects.exists()


def test_the_digest_goes_on_while_an_old_month_is_written_to() -> None:
    project = make_project()
    store.ingest(project=project, rows=[row()])
    with transaction.atomic():
        locks.acquire(locks.Lock.OLD_MONTHS, shared=True)
        locks.acquire(locks.Lock.MAKE_PARTITIONS)
        other = Other(digest.step)
        other.wait_until_it_waits()
        assert other.wait() == 1
        transaction.set_rollback(True)
