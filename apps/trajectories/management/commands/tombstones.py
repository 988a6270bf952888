"""`manage.py tombstones export FILE` and `manage.py tombstones apply FILE`."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError

from apps.trajectories.erasure import tombstone_file


class Command(BaseCommand):
    help = (
        "Writes what was deleted to a file (hashes, no ids), or deletes it again in an installation"
        " that was restored from an earlier backup (docs/deleting.md)."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("action", choices=("export", "apply"))
        parser.add_argument("file", type=Path)
        parser.add_argument("--since", help="export only what was deleted since (2026-11-30T03:00)")
        parser.add_argument(
            "--with-copies", action="store_true", help="erase tasks and examples of the runs, too"
        )

    def handle(
        self, *, action: str, file: Path, since: str | None, with_copies: bool, **options: Any
    ) -> None:
        try:
            if action == "export":
                self.export(file, datetime.fromisoformat(since) if since else None)
            else:
                self.apply(file, with_copies)
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from error

    def export(self, file: Path, since: datetime | None) -> None:
        at = since.replace(tzinfo=since.tzinfo or UTC) if since else None
        n = 0
        with file.open("wb") as out:
            for line in tombstone_file.lines(at):
                out.write(line)
                n += 1
        self.stdout.write(f"{n:,} lines written to {file}. It names nobody.")

    def apply(self, file: Path, with_copies: bool) -> None:
        with file.open("rb") as given:
            removed, again = tombstone_file.apply(given, with_copies=with_copies)
        for slug, n in removed.items():
            self.stdout.write(f"{slug}: {n:,} runs deleted again.")
        for sentence in again:
            self.stdout.write(self.style.WARNING(sentence))
