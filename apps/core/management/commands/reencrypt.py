"""`manage.py reencrypt`: after SECRET_KEY was changed (docs/security.md)."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError

from apps.core.encryption import reencrypt_all


class Command(BaseCommand):
    help = "Encrypts with SECRET_KEY what the database holds encrypted by an earlier one."

    def handle(self, **options: Any) -> None:
        unreadable = 0
        for what, (written, lost) in reencrypt_all().items():
            unreadable += lost
            said = f", {lost} unreadable" if lost else ""
            self.stdout.write(f"{what}: {written} encrypted{said}")
        if unreadable:
            raise CommandError(
                f"{unreadable} cannot be read with SECRET_KEY or SECRET_KEY_FALLBACKS. Add the"
                " earlier key and run this again."
            )
