"""Files that a process leaves for others, on whatever machine: uploads that wait, what a job
continues from.

A row names each file (`KeptFile`), the store has its bytes under their SHA-256. The files of one
`put` are there together or not at all, and bytes go with the last row that has them. So a file can
be left by one machine, read by the next and removed by a third, over a bucket as in a folder.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from apps.core.bus import on
from apps.core.locks import NameLock, acquire_named
from apps.core.models import KeptFile
from apps.core.stores import OtherFiles, StoredFile, store
from apps.core.whole_folders import alone, differs, fetch_file, require_space
from workers.lib.folder_digest import sha256_of

log = logging.getLogger(__name__)
LEFT_FOR = timedelta(days=2)  # after which a file that nobody came back for is removed
CACHED_S = 2 * 24 * 3600  # for which a copy on this machine is kept after its last use


def _nothing() -> None:
    return None


def put(
    folder: str,
    files: Mapping[str, Path],
    *,
    is_final: bool = False,
    require: Callable[[], Any] = _nothing,
) -> None:
    """Keeps files under their names, all of them or none; those of the same names are replaced.

    `is_final`: nobody writes to them any more, so a store on the same disk needs no copy. `require`
    is called in the transaction that makes the rows; what it raises leaves everything as it was.
    Raises OSError.
    """
    rows = {path: _row(folder, name, path) for name, path in files.items()}
    for path, row in rows.items():
        _upload(row, path, is_final)
    with transaction.atomic():
        require()
        named = KeptFile.objects.filter(folder=folder, path__in=files)
        before = {*named.select_for_update().values_list("sha256", flat=True)}
        for path, row in sorted(rows.items(), key=lambda item: item[1].sha256):
            acquire_named(NameLock.ARTIFACT, row.sha256)
            _upload(row, path, is_final)
        KeptFile.objects.bulk_create(
            rows.values(),
            update_conflicts=True,
            unique_fields=["folder", "path"],
            update_fields=["size", "sha256", "kept_at"],
        )
        _free(before - {row.sha256 for row in rows.values()})


def put_chunks(folder: str, files: Mapping[str, Iterable[bytes]]) -> None:
    """As `put`, of what is sent to this process."""
    home = _here() / f"incoming-{uuid4().hex}"
    home.mkdir(parents=True)
    try:
        for number, chunks in enumerate(files.values()):
            with (home / str(number)).open("wb") as file:
                file.writelines(chunks)
        paths = {name: home / str(number) for number, name in enumerate(files)}
        put(folder, paths, is_final=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def copy(source: str, target: str, names: Collection[str]) -> None:
    """Keeps these files or folders of `source` in `target`, too. No bytes are moved."""
    rows = list(named(source, names))
    for digest in sorted({row.sha256 for row in rows}):
        acquire_named(NameLock.ARTIFACT, digest)
    KeptFile.objects.bulk_create(
        KeptFile(folder=target, path=row.path, size=row.size, sha256=row.sha256) for row in rows
    )


def named(folder: str, names: Collection[str]) -> QuerySet[KeptFile]:
    """The files of these names, and those in folders of these names."""
    wanted = Q(path__in=names)
    for name in names:
        wanted |= Q(path__startswith=f"{name}/")
    return KeptFile.objects.filter(wanted, folder=folder)


def path_of(folder: str, name: str) -> Path | None:
    """Where the file can be read on this machine; None if it is not kept (any more). Nobody may
    write to it. Raises OSError if it cannot be had, or is not what was kept.
    """
    row = KeptFile.objects.filter(folder=folder, path=name).first()
    if row is None:
        return None
    if store().is_here:
        return Path(store().path(row.stored_as))
    home = _here()
    entry = {"path": row.sha256, "size": row.size, "sha256": row.sha256}
    with alone(home / row.sha256):
        if differs(home, entry):
            _fetch([row], lambda _: "", home / row.sha256)
        os.utime(home / row.sha256)
    return home / row.sha256


def fetch(folder: str, name: str, target: Path) -> bool:
    """Makes `target` what is kept as a file or folder of this name; False, and nothing is changed,
    if nothing is. Raises OSError, and then `target` is as it was.
    """
    rows = list(named(folder, [name]))
    if rows:
        _fetch(rows, lambda path: path.removeprefix(name).lstrip("/"), target)
    return bool(rows)


def _fetch(rows: list[KeptFile], inside: Callable[[str], str], target: Path) -> None:
    """`inside`: a path within the target; "" if that is the file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    require_space(target, sum(row.size for row in rows))
    made = Path(tempfile.mkdtemp(prefix="incoming-", dir=target.parent))
    try:
        whole = made / "whole"
        for row in rows:
            path = f"whole/{inside(row.path)}".rstrip("/")
            entry = {"path": path, "size": row.size, "sha256": row.sha256}
            fetch_file(row.stored_as, entry, made)
        if target.is_dir():
            shutil.rmtree(target)
        whole.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@transaction.atomic
def remove(rows: QuerySet[KeptFile]) -> None:
    """The bytes go after the commit, unless another row has the same."""
    digests = {*rows.values_list("sha256", flat=True)}
    if digests:
        rows.delete()
        _free(digests)


def remove_folder(folder: str) -> None:
    remove(KeptFile.objects.filter(folder=folder))


def remove_leftovers(prefix: str, awaited: Callable[[set[str]], set[str]]) -> None:
    """Removes folders below `prefix` that nobody came back for; `awaited` says which of these names
    are still needed.
    """
    old = KeptFile.objects.filter(folder__startswith=prefix, kept_at__lt=Now() - LEFT_FOR)
    names = {folder.removeprefix(prefix) for folder in old.values_list("folder", flat=True)}
    if left := names - awaited(names) if names else set():
        remove(KeptFile.objects.filter(folder__in=[f"{prefix}{name}" for name in left]))


def _row(folder: str, name: str, path: Path) -> KeptFile:
    size = path.stat().st_size
    return KeptFile(folder=folder, path=name, size=size, sha256=sha256_of(path), kept_at=Now())


def _upload(row: KeptFile, path: Path, is_final: bool) -> None:
    if not store().has(row.stored_as, row.size):
        (store().adopt if is_final else store().put)(row.stored_as, path)


def _free(digests: Collection[str]) -> None:
    if digests:
        transaction.on_commit(lambda: [_remove_bytes(digest) for digest in sorted(digests)])


def _remove_bytes(digest: str) -> None:
    """Unless they were kept again. Bytes that cannot be removed waste space, no more."""
    with transaction.atomic():
        acquire_named(NameLock.ARTIFACT, digest)
        if KeptFile.objects.filter(sha256=digest).exists():
            return
        (_here() / digest).unlink(missing_ok=True)
        try:
            store().delete(KeptFile(sha256=digest).stored_as)
        except OSError as error:
            log.warning("The kept file %s was not removed from the store: %s", digest[:12], error)


@on(OtherFiles)
def kept_files(question: OtherFiles) -> Iterator[StoredFile]:
    rows = KeptFile.objects.order_by("sha256").values_list("sha256", "size").distinct()
    for digest, size in rows.iterator():
        yield StoredFile(KeptFile(sha256=digest).stored_as, size, digest)


# Copies on this machine


def _here() -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "kept"


def tidy_copies() -> None:
    """Removes copies that nobody used for long, or of what was removed elsewhere."""
    old = time.time() - CACHED_S
    there = list(_here().iterdir()) if _here().is_dir() else []
    digests = {path.name for path in there if len(path.name) == 64}
    live = {*KeptFile.objects.filter(sha256__in=digests).values_list("sha256", flat=True)}
    for path in there:
        with suppress(FileNotFoundError):
            if path.name in digests - live or path.stat().st_mtime < old:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
