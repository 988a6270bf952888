from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apps.core import runner
from apps.core.models import Project
from apps.trajectories.erasure import job
from apps.trajectories.erasure.operations import Confirmed, start
from apps.trajectories.models import DataDeletion
from tests.factories import admin_of

Delete = Callable[..., DataDeletion]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PATIENCE", timedelta(0))
    monkeypatch.setattr(job, "MACHINES_PATIENCE", timedelta(0))
    monkeypatch.setattr(job, "PAUSE_S", 0)


def submit(project: Project, **what: Any) -> DataDeletion:
    return start(
        project=project, by=admin_of(project), given=Confirmed(confirm=project.name, **what)
    )


def ended(row: DataDeletion) -> DataDeletion:
    runner.run(row)
    row.refresh_from_db()
    assert row.state == "succeeded", row.error
    return row
