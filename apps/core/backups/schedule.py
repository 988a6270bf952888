"""Backups that are made by themselves: each day at FLYWHEEL_BACKUP_AT (UTC) in a new folder of
FLYWHEEL_BACKUP_TARGET, of which the newest FLYWHEEL_BACKUP_KEEP are kept.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from apps.core import outbox
from apps.core.backups import making
from apps.core.backups.history import noting
from apps.core.backups.manifest import BackupError
from apps.core.backups.places import MANIFEST, place_at
from apps.core.errors import Rejected
from apps.core.models import Backup

log = logging.getLogger(__name__)
NOW = "core.back_up_now"
NOW_EXPIRES_S = 240
AGAIN = timedelta(hours=1)  # after one that failed
LATE = timedelta(hours=26)
NAME = re.compile(r"flywheel-\d{8}-\d{6}")


def back_up_if_due() -> None:
    if settings.FLYWHEEL_BACKUP_TARGET and is_due(timezone.now()):
        back_up()


def is_due(now: datetime) -> bool:
    """At its time, where none was made since; one that failed is tried again after an hour."""
    hour, minute = map(int, settings.FLYWHEEL_BACKUP_AT.split(":"))
    last_time = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if last_time > now:
        last_time -= timedelta(days=1)
    ours = Backup.objects.filter(is_scheduled=True)
    return not (
        ours.whole().filter(started_at__gte=last_time).exists()
        or ours.filter(started_at__gt=now - AGAIN).exists()
    )


def back_up() -> None:
    """What fails is kept, and is a condition."""
    root = settings.FLYWHEEL_BACKUP_TARGET.rstrip("/")
    target = f"{root}/flywheel-{timezone.now():%Y%m%d-%H%M%S}"
    try:
        with noting(target, is_scheduled=True) as note:
            note.manifest = making.make(target)
        forget_old(root)
    except BackupError as error:
        log.error("No backup was made: %s", error)
    except OSError as error:
        log.error("Old backups in %s were not removed: %s", root, error)


def forget_old(root: str) -> None:
    """Removes all but the newest whole ones, and what was left unfinished before them. Of a name
    that no schedule gives, nothing.
    """
    is_whole: dict[str, bool] = {}
    for name in place_at(root).names():
        folder, _, rest = name.partition("/")
        if NAME.fullmatch(folder):
            is_whole[folder] = is_whole.get(folder, False) or rest == MANIFEST
    newest_first = sorted(is_whole, reverse=True)
    kept = [folder for folder in newest_first if is_whole[folder]][: settings.FLYWHEEL_BACKUP_KEEP]
    for folder in newest_first:
        if kept and folder < kept[0] and folder not in kept:
            place_at(f"{root}/{folder}").remove_all()


def ask_for_one() -> None:
    """Has a worker make one now. Raises Rejected."""
    if not settings.FLYWHEEL_BACKUP_TARGET:
        raise Rejected("Set FLYWHEEL_BACKUP_TARGET first (docs/backup.md).")
    outbox.post(NOW, expires_s=NOW_EXPIRES_S)


def lateness(now: datetime) -> tuple[str, datetime] | None:
    """What is wrong and since when, where backups are scheduled and the last whole one is too old.
    The first is made within minutes.
    """
    tried = Backup.objects.exclude(finished_at=None).first()
    if not settings.FLYWHEEL_BACKUP_TARGET or tried is None:
        return None
    last = Backup.objects.whole().first()
    since = (last or tried).finished_at
    assert since is not None
    if last and since > now - LATE:
        return None
    said = f"The last backup is of {since:%Y-%m-%d %H:%M} UTC." if last else "None was made so far."
    return f"{said} {tried.problem}".strip(), since
