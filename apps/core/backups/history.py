"""The backups that this installation has made, or tried to make: one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db.models import QuerySet
from django.db.models.functions import Now

from apps.core import schema
from apps.core.backups.manifest import BackupError, Manifest
from apps.core.locks import Lock, try_holding
from apps.core.models import Backup


@dataclass
class Note:
    manifest: Manifest | None = None


@contextmanager
def noting(target: str, *, is_scheduled: bool = False) -> Iterator[Note]:
    """Keeps how it went, where the database has the table for it: before an update it may not.
    Raises BackupError if another backup is being made.
    """
    with try_holding(Lock.BACKUP) as is_alone:
        if not is_alone:
            raise BackupError("Another backup is being made. Wait for its end.")
        knows = schema.schema_state().kind == schema.Kind.CURRENT
        if knows:
            end_interrupted()
            row = Backup.objects.create(target=target[:500], is_scheduled=is_scheduled)
            this = Backup.objects.filter(pk=row.pk)
        note = Note()
        try:
            yield note
        except BaseException as error:
            if knows:
                said = str(error) if isinstance(error, BackupError) else type(error).__name__
                this.update(finished_at=Now(), problem=said or "It was interrupted.")
            raise
        if knows and (made := note.manifest):
            this.update(finished_at=Now(), size=made.size, lacks=len(made.lacks))


def end_interrupted() -> None:
    """Those whose process is gone: whoever calls this holds the lock, or has restored them."""
    unfinished: QuerySet[Backup] = Backup.objects.filter(finished_at=None)
    unfinished.update(finished_at=Now(), problem="It was interrupted.")
