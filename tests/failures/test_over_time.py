"""Failures of each day by mode, agent version and cluster, as the overview shows them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import ensure_modes
from apps.failures.models import Failure, FailureCluster, FailureState
from apps.trajectories import digest
from tests.factories import make_failed, make_member, make_project

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def project() -> Project:
    """Two failures yesterday, three on the day before; the first in a cluster."""
    project = make_project()
    for number, days in enumerate((1, 1, 2, 2, 2)):
        started = (NOW - timedelta(days=days)).isoformat()
        make_failed(project, started_at=started, agent={"name": "desk", "version": str(number % 2)})
    classify_project(project=project)
    digest.run()
    return project


def totals(project: Project, by: str) -> dict[str, list[int]]:
    return {
        name: list(counts.values())
        for name, counts in rates.over_time(project, None, by)[1].items()
    }


@pytest.mark.proof
def test_each_day_is_counted_by_mode_version_and_cluster(project: Project) -> None:
    assert totals(project, "mode") == {"Incomplete execution": [3, 2]}
    assert totals(project, "version") == {"desk 0": [2, 1], "desk 1": [1, 1]}
    assert totals(project, "cluster") == {}
    cluster = FailureCluster.objects.create(
        project=project, name="It <b>", signature={}, size=2, first_seen=NOW, last_seen=NOW
    )
    first = Failure.objects.order_by("trajectory_id")[:2]
    Failure.objects.filter(pk__in=[row.pk for row in first]).update(cluster=cluster)
    assert totals(project, "cluster") == {"It ‹b›": [2]}


def test_dismissed_ones_and_clusters_that_are_gone_are_left_out(project: Project) -> None:
    cluster = FailureCluster.objects.create(
        project=project, name="Old", signature={}, size=5, first_seen=NOW, last_seen=NOW, gone=True
    )
    Failure.objects.update(cluster=cluster)
    Failure.objects.filter(pk=Failure.objects.order_by("trajectory_id").first().pk).update(
        state=FailureState.DISMISSED
    )
    assert totals(project, "cluster") == {} and totals(project, "mode") == {
        "Incomplete execution": [2, 2]
    }


@pytest.mark.proof
def test_modes_with_long_names_are_told_apart_by_their_ends(project: Project) -> None:
    modes = ensure_modes(project)
    for slug in ("incomplete_execution", "bad_planning"):
        mode = modes[slug]
        mode.name = "The same name for more than 28 characters " + slug
        mode.save()
    Failure.objects.filter(pk=Failure.objects.order_by("trajectory_id").first().pk).update(
        mode=modes["bad_planning"]
    )
    shown = totals(project, "mode")
    assert list(shown.values()) == [[2, 2], [1]] and all(len(name) == 28 for name in shown)
    assert [name[-12:] for name in shown] == ["te_execution", "bad_planning"]


def test_the_overview_shows_them(project: Project) -> None:
    client = Client()
    client.force_login(make_member(project))
    figures = dict(
        client.get(reverse("dashboard:failure_rate", args=[project.slug])).context["figures"]
    )
    assert {"failures-by-mode", "failures-by-version"} <= set(
        figures
    ) and "failures-by-cluster" not in figures
    assert [list(trace["y"]) for trace in figures["failures-by-mode"]["data"]] == [[3, 2]]


def test_one_day_is_no_chart() -> None:
    project = make_project()
    make_failed(project)
    classify_project(project=project)
    digest.run()
    assert list(rates.figures_over_time(project, None)) == []
