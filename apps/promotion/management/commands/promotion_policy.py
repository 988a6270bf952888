"""`manage.py promotion_policy`: prints a channel's policy as TOML; with `--import FILE --reason …`
adds a version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.errors import Rejected
from apps.core.management.projects import find_project
from apps.promotion.gate.policy import as_toml, from_toml
from apps.promotion.policies import PRODUCTION, channel_of, policy_of, save_policy
from workers.lib.typed import FormError


class Command(BaseCommand):
    help = "Prints the promotion policy of a channel as TOML, or imports one as a new version."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", help="Short name; optional if there is only one project")
        parser.add_argument("--channel", default=PRODUCTION)
        parser.add_argument(
            "--import",
            dest="file",
            type=Path,
            metavar="FILE",
            help="A TOML file as this command prints it",
        )
        parser.add_argument("--reason", default="", help="Stored with the new version")

    def handle(
        self, *, project: str | None, channel: str, file: Path | None, reason: str, **options: Any
    ) -> None:
        found = channel_of(find_project(project), channel)
        if file is None:
            self.stdout.write(as_toml(policy_of(found)[0]))
            return
        try:
            row = save_policy(
                channel=found, policy=from_toml(file.read_text()), reason=reason, by=None
            )
        except (FormError, Rejected, OSError, UnicodeDecodeError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"Version {row.version} applies to {found}." if row else "Nothing changed."
        )
