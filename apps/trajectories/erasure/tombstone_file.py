"""Tombstones as a file: what was deleted after a backup is deleted again once it is restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import transaction
from msgspec import json

from apps.core.actions import audit
from apps.core.models import JobState, Project
from apps.trajectories import copies, tombstones
from apps.trajectories.actions import deletions
from apps.trajectories.models import DataDeletion, Tombstone, Trace, Trajectory, TrajectoryKey
from apps.trajectories.tombstones import Kind

AT_ONCE = 1_000


def lines(since: datetime | None = None) -> Iterator[bytes]:
    """JSON lines: tombstones by project, then the deletions of people, which name nobody."""
    rows = Tombstone.objects.filter(**({"deleted_at__gte": since} if since else {}))
    for row in rows.select_related("project").order_by("project_id", "deleted_at").iterator():
        yield _line(
            project=row.project.slug,
            digest=bytes(row.digest).hex(),
            is_link=row.is_link,
            deleted_at=row.deleted_at,
        )
    done = DataDeletion.objects.filter(state=JobState.SUCCEEDED)
    for job in done.filter(**({"finished_at__gte": since} if since else {})).order_by("created_at"):
        yield _line(
            project=job.project.slug,
            deletion=str(job.pk),
            what=job.spec.get("what", ""),
            is_of_person=bool(job.spec.get("person")),
            deleted_at=job.finished_at,
        )


def _line(**values: Any) -> bytes:
    return json.encode(values) + b"\n"


def apply(given: Iterable[bytes], *, with_copies: bool) -> tuple[Counter[str], list[str]]:
    """Buries what the file names and deletes it where it is here. Returns {project: runs that were
    deleted}, and sentences about deletions that a person has to repeat.
    """
    digests: dict[str, list[Tombstone]] = {}
    again = []
    for line in given:
        if not line.strip():
            continue
        row = json.decode(line)
        if "digest" in row:
            digests.setdefault(row["project"], []).append(
                Tombstone(
                    digest=bytes.fromhex(row["digest"]),
                    is_link=row["is_link"],
                    deleted_at=datetime.fromisoformat(row["deleted_at"]),
                )
            )
        elif row["is_of_person"]:
            again.append(
                f"{row['project']}: repeat the deletion of {row['what']} of"
                f" {row['deleted_at'][:10]} for what mentions them; the file does not say who it"
                " was."
            )
    removed: Counter[str] = Counter()
    for project in Project.objects.filter(slug__in=digests):
        rows = digests[project.slug]
        for tombstone in rows:
            tombstone.project = project
        Tombstone.objects.bulk_create(rows, ignore_conflicts=True, batch_size=5_000)
        removed[project.slug] = _delete(project, with_copies)
    again += [f"{slug}: there is no such project here." for slug in digests.keys() - removed.keys()]
    return removed, again


def _delete(project: Project, with_copies: bool) -> int:
    """The runs and traces of a project that tombstones name."""
    keys = TrajectoryKey.objects.filter(project=project).order_by("external_id")
    named = keys.values_list("external_id", "trajectory_id").iterator()
    removed = 0
    for some in _some(named):
        gone = tombstones.deleted_runs(project, [name for name, _ in some])
        if pks := [pk for name, pk in some if name in gone]:
            removed += _purge(project, pks, with_copies)
    traces = Trace.objects.filter(project=project).order_by("trace_id")
    for some in _some(traces.iterator()):
        gone = tombstones.deleted(project, Kind.TRACE, [trace.trace_id for trace in some])
        with transaction.atomic():
            deletions.forget_traces(project, [trace for trace in some if trace.trace_id in gone])
    if removed:
        audit("trajectories.deleted_again", project=project, by=None, n=removed)
    return removed


@transaction.atomic
def _purge(project: Project, pks: list[Any], with_copies: bool) -> int:
    rows = Trajectory.objects.filter(pk__in=pks)
    if with_copies:
        copies.erase(project, rows)
    return deletions.purge(project, rows)


def _some(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while some := list(islice(rows, AT_ONCE)):
        yield some
