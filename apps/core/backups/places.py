"""Where backups are: a folder, or a bucket (s3://BUCKET/PREFIX, with the credentials and settings
of the artifact store).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from django.core.files.storage import storages

from apps.core.backups.parts import plain_files, read_file, write_file
from flywheel.settings import artifact_store

MANIFEST = "manifest.json"


class Place(Protocol):
    """Files under names with slashes. Everything raises OSError."""

    def write(self, name: str, chunks: Iterable[bytes]) -> None: ...
    def read(self, name: str) -> Iterator[bytes]: ...
    def names(self) -> Iterable[str]: ...
    def remove_all(self) -> None: ...


class Folder:
    """Only its owner may read it: a backup holds keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        if name == MANIFEST:
            os.sync()  # what it names is on the disk then; a sync for each of many files is slow
        write_file(self._path(name), chunks, is_synced=name == MANIFEST)

    def read(self, name: str) -> Iterator[bytes]:
        return read_file(self._path(name))

    def names(self) -> Iterable[str]:
        return (path.relative_to(self.folder).as_posix() for path in plain_files(self.folder))

    def remove_all(self) -> None:
        """The manifest first: what is half removed is no backup."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def _path(self, name: str) -> Path:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise OSError(f"{name!r} leads out of the backup")
        return self.folder.joinpath(*path.parts)


class Bucket:
    def __init__(self, address: str) -> None:
        self.storage: Any = storages.create_storage(artifact_store(address))

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        self.storage.put_chunks(name, chunks)

    def read(self, name: str) -> Iterator[bytes]:
        return self.storage.chunks(name)

    def names(self) -> Iterable[str]:
        return self.storage.names()

    def remove_all(self) -> None:
        for name in sorted(self.names(), key=lambda name: name != MANIFEST):
            self.storage.remove(name)


def place_at(target: str) -> Place:
    return Bucket(target) if target.startswith("s3://") else Folder(Path(target).resolve())
