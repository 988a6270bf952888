"""`manage.py restore SOURCE`."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.backups.manifest import BackupError
from apps.core.backups.restoring import restore
from flywheel.beginning import described
from flywheel.places import COMMAND


class Command(BaseCommand):
    any_schema = True  # there is none yet
    help = (
        "Restores a backup into an empty data folder or database; “up” or “prepare” continues from"
        " there (docs/backup.md)."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", metavar="SOURCE")

    def handle(self, *, source: str, **options: Any) -> None:
        try:
            manifest, left = restore(source)
        except BackupError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"Restored {sum(manifest.tables.values()):,} rows in {len(manifest.tables)} tables and"
            f" {len(manifest.files):,} files as of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC into"
            f" {described()}. Start it with “{COMMAND} up”, or “{COMMAND} prepare” and the"
            " processes."
        )
        for sentence in left:
            self.stdout.write(self.style.WARNING(sentence))
