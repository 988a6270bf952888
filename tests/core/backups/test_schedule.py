"""Backups that are made by themselves, how many are kept, and what is said if none was."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.core.backups import making, schedule
from apps.core.backups.manifest import BackupError
from apps.core.models import Backup
from apps.core.watching import conditions
from apps.core.watching.conditions import check_all, named


def backup(started: datetime, problem: str = "", **more: Any) -> Backup:
    given = {"target": "t", "is_scheduled": True, "finished_at": started}
    return Backup.objects.create(started_at=started, problem=problem, **given | more)


def at(hour: int, minute: int = 0, day: int = 30) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=timezone.get_default_timezone())


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rows", "now", "is_due"),
    [
        ([], at(2), True),
        ([(at(3, 1, 29), "")], at(2, 59), False),
        ([(at(3, 1, 29), "")], at(3, 0), True),
        ([(at(3, 1), "")], at(23), False),
        ([(at(3, 1), "full")], at(3, 30), False),
        ([(at(3, 1), "full")], at(4, 2), True),
        ([(at(3, 1), "full"), (at(4, 2), "")], at(9), False),
    ],
)
def test_one_is_due_at_its_time_and_again_an_hour_after_a_failure(
    rows: list[tuple[datetime, str]], now: datetime, is_due: bool
) -> None:
    for started, problem in rows:
        backup(started, problem)
    backup(now, is_scheduled=False)  # made by a person: the schedule is kept
    assert schedule.is_due(now) == is_due


def test_the_newest_are_kept_and_what_is_not_ours_is_left(
    installation: Path, settings: Any, tmp_path: Path
) -> None:
    root = settings.FLYWHEEL_BACKUP_TARGET = str(tmp_path / "backups")
    settings.FLYWHEEL_BACKUP_KEEP = 2
    for name, file in {
        "flywheel-20261101-030000": "manifest.json",
        "flywheel-20261102-030000": "manifest.json",
        "flywheel-20261103-030000": "database.dump",
        "by-hand": "manifest.json",
    }.items():
        (tmp_path / "backups" / name).mkdir(parents=True)
        (tmp_path / "backups" / name / file).touch()
    schedule.back_up_if_due()
    schedule.back_up_if_due()
    row = Backup.objects.get()
    assert (row.problem, Path(row.target).parent) == ("", Path(root)) and row.size
    there = sorted(path.name for path in (tmp_path / "backups").iterdir())
    assert there == ["by-hand", "flywheel-20261102-030000", Path(row.target).name]


def test_one_that_fails_removes_nothing_and_is_said(
    installation: Path, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FLYWHEEL_BACKUP_TARGET = str(tmp_path)
    settings.FLYWHEEL_BACKUP_KEEP = 1
    now = timezone.now()
    backup(now - timedelta(hours=27))
    old = tmp_path / "flywheel-20261101-030000"
    old.mkdir()

    def full(target: str) -> None:
        raise BackupError("The disk is full.")

    monkeypatch.setattr(making, "make", full)
    schedule.back_up_if_due()
    assert old.exists() and Backup.objects.first().problem == "The disk is full."
    (finding,) = findings()
    assert finding.says.startswith("The last backup is of") and "disk is full" in finding.says
    assert finding.since == now - timedelta(hours=27)
    backup(now - timedelta(hours=25))
    assert not findings()


@pytest.fixture(autouse=True)
def _in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "ask", lambda lane, work: work())


def findings() -> list[Any]:
    one = named("backup_late")
    assert one is not None
    return check_all([one])[0].findings


def test_none_is_missed_where_none_is_scheduled(transactional_db: None, settings: Any) -> None:
    backup(timezone.now() - timedelta(days=9))
    settings.FLYWHEEL_BACKUP_TARGET = ""
    assert not findings()
