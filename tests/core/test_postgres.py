"""`__among` finds what `__in` finds, whatever the values are made of."""

from __future__ import annotations

import pytest

from apps.core.models import Project
from apps.failures.models import Failure
from apps.trajectories.actions import store
from apps.trajectories.models import TrajectoryKey
from tests.factories import row

pytestmark = pytest.mark.django_db
NAMES = ['quo"te', "back\\slash", "a,b", "{curly}", "NULL", " space ", "ünï"]


def test_among_is_in(project: Project) -> None:
    store.ingest(project=project, rows=[row(id=name) for name in [*NAMES, "another"]])
    keys = TrajectoryKey.objects.filter(project=project)
    assert set(keys.filter(external_id__among=NAMES).values_list("external_id", flat=True)) == set(
        NAMES
    )
    ids = list(keys.filter(external_id__in=NAMES).values_list("trajectory_id", flat=True))
    assert project.trajectories.filter(pk__among=ids).count() == len(NAMES)
    assert project.trajectories.exclude(pk__among=ids).get().external_id == "another"
    assert not project.trajectories.filter(pk__among=[]).exists()
    assert not Failure.objects.filter(trajectory_id__among=ids).exists()  # through a foreign key
