"""Cells counted again from the rows are those that the digest keeps, whatever is waiting to be
digested.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.core.models import Project
from apps.trajectories import digest
from apps.trajectories.actions import deletions, store
from apps.trajectories.metrics.cell_store import KEY
from apps.trajectories.metrics.cells import COUNTED, SKETCHED
from apps.trajectories.models import Arrival, MetricCell, Trajectory
from tests.factories import make_project, row
from tests.trajectories.test_metrics import traffic

pytestmark = pytest.mark.django_db(transaction=True)


def cells(project: Project) -> list[tuple[Any, ...]]:
    found = (
        MetricCell.objects.filter(project=project, runs__gt=0)
        .order_by(*KEY)
        .values_list(*KEY, *COUNTED, *SKETCHED)
    )
    return [
        tuple(round(value, 9) if isinstance(value, float) else value for value in cell)
        for cell in found
    ]


def test_it_gives_the_cells_that_the_digest_keeps(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_project()
    traffic(project, 30)
    traffic(other, 5, seed=2)
    kept, others = cells(project), cells(other)
    MetricCell.objects.filter(project=project, dimension__in=("", "model")).delete()
    MetricCell.objects.filter(project=project).update(runs=7)
    call_command("recount_metrics", project=project.slug)
    assert (
        cells(project) == kept
        and cells(other) == others
        and "30 trajectories counted" in capsys.readouterr().out
    )
    call_command("recount_metrics")
    assert cells(project) == kept and cells(other) == others


def test_what_waits_for_the_digest_is_counted_once(project: Project) -> None:
    traffic(project, 10)
    store.ingest(project=project, rows=[row("new"), row("gone")])
    deletions.delete(trajectory=Trajectory.objects.get(project=project, external_id="gone"))
    deletions.delete(trajectory=Trajectory.objects.filter(project=project).order_by("pk")[0])
    assert Arrival.objects.filter(project=project).exists()
    call_command("recount_metrics", project=project.slug)
    digest.run()
    counted = cells(project)
    call_command("recount_metrics", project=project.slug)
    assert cells(project) == counted
    assert sum(cell[4] for cell in counted if cell[:3:2] == ("day", "")) == 10


def test_an_unknown_project_is_said() -> None:
    with pytest.raises(CommandError, match="no project"):
        call_command("recount_metrics", project="none")
