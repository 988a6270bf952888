"""`manage.py unlock`: unlocks the account of somebody who failed to log in too often."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.actions import unlock_account
from apps.core.attempts import unlock_address


class Command(BaseCommand):
    help = "Unlocks an account, or with --address an address, after too many failed log-ins."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username", nargs="?", default="")
        parser.add_argument("--address", default="")

    def handle(self, *, username: str, address: str, **options: Any) -> None:
        if not (username or address):
            raise CommandError("Name a user, or an address with --address.")
        done = [unlock_account(username=username, project=None, by=None)] if username else []
        done += [unlock_address(address)] if address else []
        self.stdout.write("Unlocked." if any(done) else "Nothing was locked.")
