"""Where artifacts are stored: `STORAGES["artifacts"]`, a folder of this machine (here) or a bucket
(`buckets`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from django.conf import settings
from django.core.files.storage import FileSystemStorage, storages

from apps.core.bus import Question

CHUNK = 2**20


class StoredFile(NamedTuple):
    name: str
    size: int
    sha256: str

    @property
    def entry(self) -> dict[str, Any]:
        return {"path": self.name, "size": self.size, "sha256": self.sha256}


class OtherFiles(Question[Iterable[StoredFile]]):
    """What else is in the store: single files, not of an artifact."""


class StoreError(OSError):
    """A store that is down, slow, full, or lacks a file; the message says which."""


class NoAnswer(StoreError):
    """The store did not answer or refused a request, after all retries of its client."""


class DataFolder(FileSystemStorage):
    """The folder `artifacts` in the data folder, read from the current settings."""

    is_here = True

    @property
    def base_location(self) -> str:  # type: ignore[override]
        return str(Path(settings.FLYWHEEL_DATA_DIR) / "artifacts")

    @property
    def location(self) -> str:  # type: ignore[override]
        return self.base_location

    def put(self, name: str, path: Path) -> None:
        """Store a file so that it is either complete or absent."""
        with self._beside(name) as beside:
            shutil.copyfile(path, beside)
            with beside.open("rb") as file:
                os.fsync(file.fileno())

    def adopt(self, name: str, path: Path) -> None:
        """As `put`, of a file that nobody changes any more: a hard link where the disk allows."""
        try:
            with self._beside(name) as beside:
                os.link(path, beside)
        except OSError:
            self.put(name, path)

    @contextmanager
    def _beside(self, name: str) -> Iterator[Path]:
        """Where what is stored is made; then it goes to its place."""
        target = Path(self.path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"{target.name}.{uuid4().hex}")
        try:
            yield beside
            beside.rename(target)
        finally:
            beside.unlink(missing_ok=True)  # renaming to a link of the same file leaves it

    def has(self, name: str, size: int) -> bool:
        path = Path(self.path(name))
        return path.is_file() and path.stat().st_size == size

    def chunks(self, name: str) -> Iterator[bytes]:
        """Raises OSError."""
        with Path(self.path(name)).open("rb") as file:
            while data := file.read(CHUNK):
                yield data

    def remove_folder(self, name: str, files: list[str]) -> None:
        shutil.rmtree(self.path(name), ignore_errors=True)


def store() -> Any:
    """`DataFolder` or `buckets.Bucket`."""
    return storages["artifacts"]
