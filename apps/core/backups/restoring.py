"""Restores a backup into an empty installation: other machine, other paths, other store.

The database comes last, in one transaction: what is interrupted before is done again by the same
command.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.conf import settings
from django.db import connection
from msgspec import json

from apps.core import schema
from apps.core.backups import database
from apps.core.backups.history import end_interrupted
from apps.core.backups.manifest import DATABASE, KEYS, BackupError, Manifest, verify
from apps.core.backups.parts import Parts, write_file
from apps.core.backups.places import Place, place_at
from apps.core.bus import Question, ask
from apps.core.models import Worker


class Lacks(Question[list[str]]):
    """Sentences about what a restored installation still needs."""


def restore(source: str) -> tuple[Manifest, list[str]]:
    """Returns what it restored, and sentences about what is left to do. Raises BackupError, and
    then has changed nothing that an empty installation would notice.
    """
    place = place_at(source)
    if there := database.what_is_there():
        raise BackupError(
            f"The database is not empty: it has {', '.join(there[:3])}"
            f"{f' and {len(there) - 3} more' if len(there) > 3 else ''}. A backup is restored into"
            " an empty one: name another folder with FLYWHEEL_DATA_DIR, or another database with"
            " DATABASE_URL."
        )
    manifest = verify(place, source)
    if reason := schema.why_not_restore(manifest.schema):
        raise BackupError(reason)
    if (server := database.server_version()) < manifest.postgres:
        raise BackupError(
            f"The backup is of PostgreSQL {manifest.postgres}, and this server is {server}. Restore"
            f" it into PostgreSQL {manifest.postgres} or later."
        )
    pg_restore, _ = database.program("pg_restore", manifest.postgres)
    left = [*_restore_keys(place)]
    _restore_files(place, manifest)
    connection.close()
    database.restore_from(pg_restore, place.read(DATABASE))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    _compare(manifest)
    state = schema.schema_state()
    if state.kind != schema.Kind.CURRENT:
        left.append(state.sentence)
    else:
        Worker.objects.all().delete()  # those of the other installation
        end_interrupted()  # the one that this was restored from
        left += [sentence for sentences in ask(Lacks()) for sentence in sentences]
    return manifest, left + [f"The backup lacked {lack}." for lack in manifest.lacks]


def _restore_keys(place: Place) -> list[str]:
    """Without the same SECRET_KEY, links, webhooks and reports that were signed would be void."""
    keys = json.decode(b"".join(place.read(KEYS)))
    here = os.environ.get("SECRET_KEY")
    if (
        here
        and here != keys["SECRET_KEY"]
        and keys["SECRET_KEY"] not in settings.SECRET_KEY_FALLBACKS
    ):
        raise BackupError(
            "SECRET_KEY is not the one of the backup, with which links, webhooks and reports were"
            f" signed. Set it to the one in {KEYS} of the backup, or add that to"
            " SECRET_KEY_FALLBACKS."
        )
    if not here:
        write_file(
            Path(settings.FLYWHEEL_DATA_DIR) / "secret_key", iter([keys["SECRET_KEY"].encode()])
        )
    left = []
    for name in ("SECRET_KEY_FALLBACKS", "FLYWHEEL_SIGNING_KEY"):
        if keys[name] and keys[name] != getattr(settings, name):
            left.append(f"Set {name} to its value in {KEYS} of the backup.")
    return left


def _restore_files(place: Place, manifest: Manifest) -> None:
    parts = {part.name: part for part in ask(Parts())}
    files = [
        (entry, *entry.name.split("/", 2)[1:])
        for entry in manifest.files
        if entry.name.startswith("files/")
    ]
    if unknown := sorted({part for _, part, _ in files} - parts.keys()):
        raise BackupError(
            f"The backup holds {', '.join(unknown)}, which this version does not know. Restore it"
            " with the version that made it, or a later one."
        )
    for entry, part, name in files:
        try:
            parts[part].write(name, place.read(entry.name))
        except OSError as error:
            raise BackupError(
                f"{name} could not be restored: {error.strerror or error}. The database was not"
                " touched; mend that and run the command again."
            ) from error


def _compare(manifest: Manifest) -> None:
    rows = database.rows_by_table()
    other = [
        f"{table} has {rows.get(table, 0)} rows instead of {count}"
        for table, count in manifest.tables.items()
        if rows.get(table) != count
    ]
    if other:
        raise BackupError(
            f"The restored database differs from the backup: {'; '.join(other[:3])}. Do not use it."
        )
