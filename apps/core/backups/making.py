"""Makes a backup while everything goes on.

Files come first, since they take longest. Then the database is read in one snapshot, and what its
rows refer to and is not in the backup yet is added: a file is stored before its row. If one of them
was removed in between, the snapshot is taken again, before anything is dumped.

So the backup has everything that was acknowledged before it began: in the database, or in a spool,
whose files are copied before the snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from django.utils import timezone
from msgspec import json

from apps.core import schema
from apps.core.backups import database
from apps.core.backups.manifest import (
    DATABASE,
    KEYS,
    BackupError,
    Entry,
    Hashed,
    Manifest,
    sealed,
)
from apps.core.backups.parts import File, Part, Parts
from apps.core.backups.places import MANIFEST, Place, place_at
from apps.core.bus import ask
from flywheel.version import VERSION

TRIES = 5
SECRETS = ("SECRET_KEY", "SECRET_KEY_FALLBACKS", "FLYWHEEL_SIGNING_KEY")


def make(target: str, *, with_models: bool = False) -> Manifest:
    """`target` is a new folder, or s3://BUCKET/PREFIX without files. Raises BackupError."""
    place = place_at(target)
    try:
        if any(True for _ in place.names()):
            raise BackupError(
                f"{target} is not empty. Name a folder that does not exist yet; one backup is one"
                " folder."
            )
        return _make(place, with_models)
    except OSError as error:
        raise BackupError(
            f"The backup could not be written to {target}: {error.strerror or error}. What is there"
            " is unfinished; remove it."
        ) from error


def _make(place: Place, with_models: bool) -> Manifest:
    if not database.what_is_there():
        raise BackupError("The database is empty: there is nothing to back up.")
    pg_dump, version = database.program("pg_dump", database.server_version())
    made_at = timezone.now()
    parts = [part for part in ask(Parts()) if with_models or not part.is_base]
    copies = Copies(place)
    for part in parts:
        copies.add(part)
    for tried in range(1, TRIES + 1):
        with database.snapshot() as snapshot:
            copies.lacks = [lack for part in parts for lack in copies.add(part)]
            if copies.lacks and tried < TRIES:
                continue
            recorded, tables = schema.recorded(), database.rows_by_table()
            copies.write(DATABASE, database.dumped(pg_dump, snapshot))
            break
    keys = {name: getattr(settings, name) for name in SECRETS}
    copies.write(KEYS, iter([json.encode(keys)]))
    manifest = Manifest(
        version=VERSION,
        made_at=made_at,
        postgres=version,
        schema=recorded,
        tables=tables,
        files=[copies.entries[name] for name in sorted(copies.entries)],
        lacks=copies.lacks,
    )
    place.write(MANIFEST, iter([sealed(manifest)]))
    return manifest


class Unreadable(Exception):
    """A file that is gone, or not what was stored."""


class Copies:
    """What is in the backup so far."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.entries: dict[str, Entry] = {}
        self.stamps: dict[str, str] = {}
        self.lacks: list[str] = []

    def add(self, part: Part) -> list[str]:
        """Copies what is new or has changed. Returns sentences about files that rows refer to and
        that cannot be read.
        """
        lacks = []
        for file in part.files():
            name = f"files/{part.name}/{file.name}"
            if self.stamps.get(name) == file.stamp:
                continue
            try:
                self.write(name, _readable(file))
                self.stamps[name] = file.stamp
            except Unreadable as error:
                if part.is_referred:
                    lacks.append(f"{file.name} ({part.name}): {error}")
        return lacks

    def write(self, name: str, chunks: Iterator[bytes]) -> None:
        hashed = Hashed(chunks)
        self.place.write(name, hashed)
        self.entries[name] = Entry(name, hashed.size, hashed.sha256)


def _readable(file: File) -> Iterator[bytes]:
    """Tells what cannot be read from what cannot be written."""
    try:
        yield from file.read()
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
