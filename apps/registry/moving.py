"""Moves artifacts from one store to another, when an installation starts or stops using a
bucket.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.core.backups.parts import File, Part, Parts, of_folder
from apps.core.bus import ask, on
from apps.core.stores import OtherFiles, StoredFile, store
from apps.core.whole_folders import verified
from apps.registry.models import Artifact


@dataclass
class Moved:
    """Numbers of artifacts and other files by result; `failed` are sentences."""

    copied: int = 0
    there: int = 0
    failed: list[str] = field(default_factory=list)


@on(Parts)
def stored(question: Parts) -> Part:
    """What rows refer to in the store, wherever that is now and will be."""
    write = partial(put_chunks, store())
    return Part("store", _backed_up, write, is_referred=True)


@on(Parts)
def model_folders(question: Parts) -> Part:
    """Base models that are in the data folder."""
    return of_folder("models", Path(settings.FLYWHEEL_DATA_DIR) / "models", is_base=True)


def _backed_up() -> Iterator[File]:
    rows = Artifact.objects.order_by("created_at", "digest").values_list("digest", "files")
    artifacts = (
        StoredFile(f"{digest}/{entry['path']}", entry["size"], entry["sha256"])
        for digest, files in rows.iterator()
        for entry in files
    )
    for file in chain(artifacts, chain.from_iterable(ask(OtherFiles()))):
        yield File(file.name, file.sha256, partial(_chunks, file))


def _chunks(file: StoredFile) -> Iterator[bytes]:
    return verified(file.entry, store().chunks(file.name))


def put_chunks(target: Any, name: str, chunks: Iterable[bytes]) -> None:
    """Stores what is not a file yet. Raises OSError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with path.open("wb") as copy:
            copy.writelines(chunks)
        target.put(name, path)


def move_all(source: Any, target: Any, *, remove: bool, said: Callable[[str], None]) -> Moved:
    """Move every artifact and file in the database. What is intact in `target` is not sent again,
    so an interrupted move can be continued. Each file is verified when it is read and again in
    `target`; only then, if `remove` is set, it is removed from `source`.
    """
    found = Moved()
    artifacts = Artifact.objects.order_by("created_at", "digest")
    count = artifacts.count()
    for number, artifact in enumerate(artifacts.iterator(), start=1):
        files = [
            StoredFile(f"{artifact.digest}/{entry['path']}", entry["size"], entry["sha256"])
            for entry in artifact.files
        ]
        try:
            sent = sum(_copy(file, source, target) for file in files)
            if remove:
                source.remove_folder(artifact.digest, [entry["path"] for entry in artifact.files])
        except OSError as error:
            found.failed.append(f"{artifact}: {error.strerror or error}")
            said(f"{number} of {count}: {found.failed[-1]}")
            continue
        found.copied += bool(sent)
        found.there += not sent
        said(f"{number} of {count}: {artifact} {f'copied ({sent} files)' if sent else 'is there'}")
    for file in chain.from_iterable(ask(OtherFiles())):
        try:
            sent = _copy(file, source, target)
            if remove:
                source.delete(file.name)
        except OSError as error:
            found.failed.append(f"{file.name}: {error.strerror or error}")
            said(found.failed[-1])
            continue
        found.copied += sent
        found.there += not sent
    return found


def _copy(file: StoredFile, source: Any, target: Any) -> bool:
    """Returns False if it already exists. Raises OSError."""
    if target.has(file.name, file.size) and _is_whole(file, target):
        return False
    put_chunks(target, file.name, verified(file.entry, source.chunks(file.name)))
    for _ in verified(file.entry, target.chunks(file.name)):
        pass
    return True


def _is_whole(file: StoredFile, target: Any) -> bool:
    try:
        for _ in verified(file.entry, target.chunks(file.name)):
            pass
    except OSError:
        return False
    return True
