"""Tombstones as a file: what was deleted after a backup is deleted again once it is restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any

from django.db import transaction
from msgspec import json

from apps.core.actions import audit, revoke_api_key
from apps.core.models import ApiKey, JobState, Project, ProjectDeletion, Stage
from apps.core.projects import lifecycle
from apps.trajectories import copies, tombstones
from apps.trajectories.actions import deletions
from apps.trajectories.models import DataDeletion, Tombstone, Trace, Trajectory, TrajectoryKey
from apps.trajectories.tombstones import Kind

AT_ONCE = 1_000
CLOSED = (Stage.DELETING, Stage.DELETED)


def lines(since: datetime | None = None) -> Iterator[bytes]:
    """JSON lines: tombstones by project, the deletions of people, which name nobody, projects that
    were deleted, and keys that were revoked.
    """
    rows = Tombstone.objects.filter(**_from("deleted_at", since)).select_related("project")
    for row in rows.order_by("project_id", "deleted_at").iterator():
        yield _line(
            row.project,
            digest=bytes(row.digest).hex(),
            is_link=row.is_link,
            deleted_at=row.deleted_at,
        )
    done = DataDeletion.objects.filter(state=JobState.SUCCEEDED, **_from("finished_at", since))
    for job in done.select_related("project").order_by("created_at"):
        yield _line(
            job.project,
            deletion=str(job.pk),
            what=job.spec.get("what", ""),
            is_of_person=bool(job.spec.get("person")),
            deleted_at=job.finished_at,
        )
    gone = ProjectDeletion.objects.filter(
        project__stage__in=CLOSED, **_from("created_at", since)
    ).select_related("project")
    for deletion in gone.order_by("created_at"):
        yield _line(deletion.project, is_project=True, deleted_at=deletion.created_at)
    keys = ApiKey.objects.filter(revoked_at__isnull=False, **_from("revoked_at", since))
    for key in keys.select_related("project").order_by("revoked_at"):
        yield _line(key.project, revoked_key=key.digest, deleted_at=key.revoked_at)


def _from(field: str, since: datetime | None) -> dict[str, datetime]:
    return {f"{field}__gte": since} if since else {}


def _line(project: Project, **values: Any) -> bytes:
    """A project is known by its number and when it was made: its short name may change, and be
    another's later.
    """
    known = {"project": project.slug, "project_id": project.pk, "made_at": project.created_at}
    return json.encode(known | values) + b"\n"


def apply(given: Iterable[bytes], *, with_copies: bool) -> tuple[Counter[str], list[str]]:
    """Buries what the file names and deletes it where it is here. Returns {project: runs that were
    deleted}, and sentences about what else was done, or has to be repeated by a person.
    """
    buried: dict[Project, list[Tombstone]] = {}
    removed, sentences = Counter[str](), list[str]()
    find = lru_cache(maxsize=None)(_project)
    for line in given:
        if not line.strip():
            continue
        row = json.decode(line)
        name, project = (
            row["project"],
            find(row["project"], row.get("project_id"), row.get("made_at")),
        )
        if project is None:
            sentences.append(f"{name}: there is no such project here.")
        elif "digest" in row:
            buried.setdefault(project, []).append(_tombstone(project, row))
        elif "revoked_key" in row:
            sentences += _revoke(project, row["revoked_key"])
        elif row.get("is_project"):
            sentences += _delete_project(project)
        elif row["is_of_person"]:
            sentences.append(
                f"{project.slug}: repeat the deletion of {row['what']} of"
                f" {row['deleted_at'][:10]} for what mentions them; the file does not say who it"
                " was."
            )
    for project, rows in buried.items():
        Tombstone.objects.bulk_create(rows, ignore_conflicts=True, batch_size=5_000)
        removed[project.slug] = _delete(project, with_copies)
    return removed, list(dict.fromkeys(sentences))


def _project(slug: str, pk: int | None, made_at: str | None) -> Project | None:
    """None where it is not here. Files of 0.1 have the short name alone."""
    if pk is None or made_at is None:
        return Project.objects.filter(slug=slug).first()
    return Project.objects.filter(pk=pk, created_at=datetime.fromisoformat(made_at)).first()


def _tombstone(project: Project, row: dict[str, Any]) -> Tombstone:
    return Tombstone(
        project=project,
        digest=bytes.fromhex(row["digest"]),
        is_link=row["is_link"],
        deleted_at=datetime.fromisoformat(row["deleted_at"]),
    )


def _revoke(project: Project, digest: str) -> Iterator[str]:
    key = ApiKey.objects.filter(project=project, digest=digest, revoked_at=None).first()
    if key and revoke_api_key(key=key, by=None):
        yield f"{project.slug}: revoked the key {key} again."


def _delete_project(project: Project) -> Iterator[str]:
    if project.stage not in CLOSED:
        lifecycle.delete(project=project, confirm=project.name, by=None)
        yield f"{project.slug}: this project was deleted. A worker deletes it again."


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
