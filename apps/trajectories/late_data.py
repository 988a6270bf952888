"""Counts what came of deleted runs and was dropped, so that nobody has to guess where it went."""

from __future__ import annotations

from datetime import UTC

from django.db import connection
from django.utils import timezone

from apps.trajectories.models import LateData


def note(project: int, kind: LateData.Kind, n: int) -> None:
    """In the transaction that drops it."""
    if not n:
        return
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {LateData._meta.db_table} AS known (project_id, kind, day, n, last_at)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (project_id, day, kind) DO UPDATE SET"
            " n = known.n + EXCLUDED.n, last_at = EXCLUDED.last_at",
            [project, str(kind), now.astimezone(UTC).date(), n, now],
        )
