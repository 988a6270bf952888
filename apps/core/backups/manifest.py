"""What a backup says of itself. It is written last: without it, a backup is unfinished."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from apps.core.backups.places import MANIFEST, Place
from apps.core.errors import Rejected

FORMAT = 1
DATABASE, KEYS = "database.dump", "keys.json"
SHOWN = 5


class BackupError(Rejected):
    """A backup that cannot be made, used or restored. The message says what to do."""


class Entry(Struct):
    name: str
    size: int
    sha256: str


class Manifest(Struct, kw_only=True):
    """`tables`: rows of each. `lacks`: sentences about files that rows refer to and that were gone
    or altered. `digest`: of the manifest itself without it.
    """

    format: int = FORMAT
    version: str
    made_at: datetime
    postgres: int  # major version of the pg_dump that wrote it
    schema: dict[str, Any]  # apps.core.schema.recorded
    tables: dict[str, int]
    files: list[Entry]
    lacks: list[str] = []
    digest: str = ""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)


def sealed(manifest: Manifest) -> bytes:
    manifest.digest = _digest(manifest)
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def _digest(manifest: Manifest) -> str:
    bare = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def read_manifest(place: Place, source: str) -> Manifest:
    """Raises BackupError."""
    try:
        there = set(place.names())
        if MANIFEST not in there:
            raise BackupError(
                f"{source} holds no finished backup: {MANIFEST} is missing, which is written last."
                " Use another backup, and remove this one."
                if there
                else f"{source} holds no backup."
            )
        raw = b"".join(place.read(MANIFEST))
    except OSError as error:
        raise BackupError(f"{source} cannot be read: {error.strerror or error}.") from error
    try:
        if (version := msgspec.json.decode(raw).get("format")) != FORMAT:
            raise BackupError(
                f"{source} is written in format {version}, and this version reads {FORMAT}."
                " Restore it with the version that made it, or a later one."
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
        if manifest.digest != _digest(manifest):
            raise ValueError
        if any(_leads_out(entry.name) for entry in manifest.files):
            raise ValueError
    except (ValueError, AttributeError) as error:
        raise BackupError(
            f"{source} is damaged: its {MANIFEST} was altered. Use another backup."
        ) from error
    return manifest


def _leads_out(name: str) -> bool:
    """Whether a file of this name would be written somewhere else, whatever the place is."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts


def verify(place: Place, source: str) -> Manifest:
    """Reads all of it. Raises BackupError, naming what is damaged."""
    manifest = read_manifest(place, source)
    wrong = [problem for entry in manifest.files if (problem := _problem(place, entry))]
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise BackupError(
            f"{source} is damaged: {'; '.join(wrong[:SHOWN])}{more}. Use another backup."
        )
    return manifest


def _problem(place: Place, entry: Entry) -> str:
    found = Hashed(place.read(entry.name))
    try:
        for _ in found:
            pass
    except FileNotFoundError:
        return f"{entry.name} is missing"
    except OSError as error:
        return f"{entry.name} cannot be read ({error.strerror or error})"
    if found.size != entry.size:
        return f"{entry.name} has {found.size:,} bytes instead of {entry.size:,}"
    return "" if found.sha256 == entry.sha256 else f"{entry.name} was altered"


class Hashed:
    """Passes chunks on, and knows afterwards what they were."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self._digest, self.size = chunks, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for data in self._chunks:
            self._digest.update(data)
            self.size += len(data)
            yield data

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()
