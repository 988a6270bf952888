"""`manage.py backup TARGET`, `manage.py backup --verify TARGET`."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.backups import making
from apps.core.backups.history import noting
from apps.core.backups.manifest import BackupError, Manifest, verify
from apps.core.backups.places import place_at
from flywheel.beginning import described


class Command(BaseCommand):
    any_schema = True  # it is made before an update
    help = (
        "Makes a backup of database, files and keys in a new folder or s3://BUCKET/PREFIX, while"
        " everything goes on (docs/backup.md)."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", metavar="TARGET")
        parser.add_argument("--verify", action="store_true", help="read a backup, and compare it")
        parser.add_argument(
            "--models", action="store_true", help="with the base models in the data folder"
        )

    def handle(self, *, target: str, models: bool, **options: Any) -> None:
        try:
            if options["verify"]:
                return self._say("is whole", target, verify(place_at(target), target))
            with noting(target) as note:
                note.manifest = made = making.make(target, with_models=models)
            self._say(f"of {described()} is made", target, made)
        except BackupError as error:
            raise CommandError(str(error)) from error

    def _say(self, what: str, target: str, manifest: Manifest) -> None:
        rows = sum(manifest.tables.values())
        self.stdout.write(
            f"The backup {target} {what}: {rows:,} rows in {len(manifest.tables)} tables,"
            f" {len(manifest.files):,} files, {manifest.size / 2**20:,.1f} MiB, of Flywheel"
            f" {manifest.version}, {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC. It holds secrets."
        )
        for lack in manifest.lacks:
            self.stderr.write(self.style.WARNING(f"It lacks {lack}."))
