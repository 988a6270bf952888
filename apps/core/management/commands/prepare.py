"""`manage.py prepare`: what a first start and an update need, without starting anything."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError, call_command
from django.db import DatabaseError

from apps.core import schema, static_files
from apps.core.actions import bootstrap
from flywheel import embedded
from flywheel.outages import is_away
from flywheel.progress import doing
from flywheel.servers import reason
from flywheel.version import VERSION


class Command(BaseCommand):
    any_schema = True
    help = (
        "Migrates the database, collects static files and, the first time, makes an admin, a"
        " project and an API key."
    )

    def handle(self, **options: Any) -> None:
        prepare_installation(self)


def prepare_installation(command: BaseCommand) -> None:
    """Raises CommandError."""
    try:
        with doing("Starting PostgreSQL and Valkey"):
            embedded.ensure()
        state = schema.require_migratable()
        if state.kind in (schema.Kind.BEHIND, schema.Kind.UNFINISHED):
            command.stdout.write(f"Updating the database to Flywheel {VERSION}.")
        with doing("Migrating the database"):
            call_command("migrate", verbosity=0)
            call_command("createcachetable", verbosity=0)
    except embedded.ServiceError as error:
        raise CommandError(str(error)) from error
    except DatabaseError as error:
        if not is_away(error):
            raise
        raise CommandError(_why_away(error)) from error
    with doing("Collecting static files"):
        static_files.collect()
    made = bootstrap()
    if made is None:
        return
    lines = [f"First start. Log in as {made.username}; the project is “{made.project}”."]
    lines += [f"{made.username}'s password: {made.password}"] if made.password else []
    lines += [f"API key: {made.api_key}"] if made.api_key else []
    lines += ["These credentials are shown only once."] if len(lines) > 1 else []
    command.stdout.write("\n".join(lines))


def _why_away(error: DatabaseError) -> str:
    if not embedded.wants_postgres():
        return (
            f"The database cannot be reached: {' '.join(str(error).split())}. Check DATABASE_URL, "
            "and that this database is there and its server running."
        )
    log = embedded.Layout.of(embedded.data_dir()).log("postgres")
    return (
        f"The embedded PostgreSQL went away: {reason(log)}. Read {log}. If its disk is full, free "
        "some space, or name another folder with FLYWHEEL_DATA_DIR."
    )
