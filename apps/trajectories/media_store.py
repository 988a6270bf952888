"""Keeps the media of a project: rows in the database, bytes in the artifact store, one file for
each project and SHA-256. A file is complete before what refers to it is committed, and goes with
the last run that has it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from apps.core.bus import on
from apps.core.locks import NameLock, acquire_named
from apps.core.models import Project
from apps.core.postgres import Array
from apps.core.projects.deletion import Deleting
from apps.core.stores import OtherFiles, StoredFile, store
from apps.trajectories import media
from apps.trajectories.models import Medium, MediumUse, file_of

log = logging.getLogger(__name__)
UNUSED = timedelta(days=7)  # how long an upload waits for the first run that refers to it


def keep(
    project: Project, data: Mapping[str, bytes], known: Collection[str] = (), *, name: str = ""
) -> dict[str, int]:
    """{digest: id} of `data`, stored where it is new, and of those of `known` that the project has.
    They stay until the transaction ends.
    """
    wanted = sorted({*data, *known})
    rows = Medium.objects.filter(project=project, digest__in=wanted).order_by("digest")
    found = dict(rows.select_for_update(no_key=True).values_list("digest", "pk"))
    for digest in wanted:
        if digest in data and digest not in found:
            found[digest] = _add(project, digest, data[digest], name)
    return found


def _add(project: Project, digest: str, data: bytes, name: str) -> int:
    acquire_named(NameLock.ARTIFACT, digest)
    if row := Medium.objects.filter(project=project, digest=digest).first():
        return row.pk
    path = file_of(project.pk, digest)
    if not store().has(path, len(data)):
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            store().put(path, Path(file.name))
    sniffed = media.sniff(data)
    return Medium.objects.create(
        project=project,
        digest=digest,
        size=len(data),
        media_type=sniffed.media_type,
        width=sniffed.width,
        height=sniffed.height,
        name=name,
    ).pk


def touch(pk: int) -> None:
    """It was uploaded again, and waits anew for a run."""
    Medium.objects.filter(pk=pk).update(seen_at=timezone.now())


def use(uses: Iterable[tuple[UUID, int]]) -> None:
    MediumUse.objects.bulk_create(
        (MediumUse(trajectory_id=run, medium_id=medium) for run, medium in uses),
        ignore_conflicts=True,
    )


@transaction.atomic
def release(project: int, runs: Collection[UUID] | Array) -> None:
    """With runs that go, the media that no other run has."""
    uses = MediumUse.objects.filter(trajectory_id__among=runs)
    ids = set(uses.values_list("medium_id", flat=True))
    if ids:
        uses.delete()
        _remove_unused(Medium.objects.filter(project=project, pk__in=ids))


def forget_unused() -> int:
    """Uploads that no run has come to refer to."""
    old = Medium.objects.filter(uses=None, seen_at__lt=timezone.now() - UNUSED)
    removed = 0
    for project in set(old.values_list("project", flat=True)):
        with transaction.atomic():
            ids = list(old.filter(project=project).values_list("pk", flat=True))
            removed += _remove_unused(Medium.objects.filter(pk__in=ids))
    return removed


def _remove_unused(rows: Any) -> int:
    locked = list(rows.select_for_update().order_by("digest"))
    used = MediumUse.objects.filter(medium__in=locked).values_list("medium_id", flat=True)
    gone = {row.pk for row in locked} - set(used)
    unused = Medium.objects.filter(pk__in=gone)
    then = remove_files(Deleting(unused))
    unused.delete()
    then()
    return len(gone)


@on(Deleting[Medium])
def remove_files(event: Deleting[Medium]) -> Callable[[], None]:
    gone = list(event.rows.values_list("project_id", "digest"))
    return lambda: transaction.on_commit(lambda: [_remove(*key) for key in gone])


def _remove(project: int, digest: str) -> None:
    """Unless it was stored again meanwhile. A file that cannot be removed wastes space, but does
    not fail the deletion.
    """
    with transaction.atomic():
        acquire_named(NameLock.ARTIFACT, digest)
        if Medium.objects.filter(project=project, digest=digest).exists():
            return
        try:
            store().delete(file_of(project, digest))
        except OSError as error:
            log.warning("The medium %s was not removed from the store: %s", digest[:12], error)


@on(OtherFiles)
def files(question: OtherFiles) -> Iterator[StoredFile]:
    rows = Medium.objects.order_by("pk").values_list("project_id", "digest", "size")
    for project, digest, size in rows.iterator():
        yield StoredFile(file_of(project, digest), size, digest)
