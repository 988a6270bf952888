"""`manage.py prepare`: what a first start and an update need, without starting anything."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, call_command

from apps.core.actions import bootstrap


class Command(BaseCommand):
    help = "Migrates the database, collects static files and, the first time, makes an admin, a project and an API key."

    def handle(self, **options: Any) -> None:
        prepare_installation(self)


def prepare_installation(command: BaseCommand) -> None:
    call_command("migrate", verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    made = bootstrap()
    if made:
        command.stdout.write(
            f"First start. Log in as {made['username']} with the password {made['password']}\n"
            f"API key of the project “{made['project']}”: {made['api_key']}\n"
            "Both are shown this once only."
        )
