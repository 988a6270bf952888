"""`manage.py prepare`: what a first start and an update need, without starting anything."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, call_command

from apps.core.actions import bootstrap


class Command(BaseCommand):
    help = (
        "Migrates the database, collects static files and, the first time, makes an admin, a"
        " project and an API key."
    )

    def handle(self, **options: Any) -> None:
        prepare_installation(self)


def prepare_installation(command: BaseCommand) -> None:
    call_command("migrate", verbosity=0)
    call_command("createcachetable", verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    made = bootstrap()
    if made is None:
        return
    lines = [f"First start. Log in as {made.username}; the project is “{made.project}”."]
    lines += [f"{made.username}'s password: {made.password}"] if made.password else []
    lines += [f"API key: {made.api_key}"] if made.api_key else []
    lines += ["These credentials are shown only once."] if len(lines) > 1 else []
    command.stdout.write("\n".join(lines))
