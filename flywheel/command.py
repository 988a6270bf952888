"""The command line: `manage.py` of a checkout, `flywheel` of an installed package."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from typing import Any

from flywheel import places, private
from flywheel.commit import described
from flywheel.version import VERSION

NO_SERVICES = {
    "help",
    "makemigrations",
    "collectstatic",
    "check",
    "startapp",
    "spectacular",
    "routes",
    "monitoring_files",
}
HELP = {"-h", "--help"}
SERVICES = {"demo", "store_answers"}
STACKS = {"up", "demo"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    from flywheel import beginning, embedded, interrupts

    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in ("version", "--version"):
        print(f"Flywheel {described(VERSION)}")
        return
    is_stack = command in STACKS
    try:
        if uses_services(command):
            beginning.require_installation(command)
            if command not in SERVICES:
                beginning.note_default_folder(command)
        else:
            beginning.leave_nothing()
        places.keep_data_dir()
        if command in beginning.BEGIN | beginning.BEGIN_WHERE_NAMED:
            private.restrict_umask()
        if is_stack:
            interrupts.heed(interrupts.interrupt_now)
        if command == "up":
            from flywheel import up

            up.main(sys.argv[2:])
        else:
            if command not in SERVICES | STACKS:
                use_direct_database()
            removes = command in beginning.BEGIN_WHERE_NAMED
            with beginning.removed_if_failed() if removes else nullcontext():
                run_django(command)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except embedded.ServiceError as error:
        sys.exit(f"{error}")
    finally:
        if is_stack:
            embedded.stop_unused()


def uses_services(command: str) -> bool:
    verifies = command == "backup" and "--verify" in sys.argv  # reads the backup only
    needless = command in NO_SERVICES or verifies
    return bool(command) and not needless and not HELP & {*sys.argv}


def use_direct_database() -> None:
    """Commands are few and may need a session (migrations, backups): they go past a pooler."""
    if url := os.environ.pop("DATABASE_DIRECT_URL", ""):
        os.environ["DATABASE_URL"] = url


def run_django(command: str) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import CommandError, ManagementUtility
    from django.db import DatabaseError

    from apps.core.actor import ACTOR, COMMAND_LINE
    from flywheel import embedded
    from flywheel.outages import is_away

    class Utility(ManagementUtility):
        """Refuses a database of another version before a command does anything with it."""

        def fetch_command(self, subcommand: str) -> Any:
            found = super().fetch_command(subcommand)
            if uses_services(command) and subcommand == command and needs_schema(found):
                from apps.core import schema

                try:
                    schema.require_current()
                except CommandError as error:
                    sys.exit(str(error))
            return found

    try:
        if uses_services(command):
            try:
                embedded.ensure()
            except embedded.ServiceStopped:
                if command != "doctor":  # which says it with all that it can still check
                    raise
        if command == "dbshell":
            embedded.offer_programs()
        if command and command not in SERVICES:
            ACTOR.set(COMMAND_LINE)
        Utility(sys.argv).execute()
    except ImproperlyConfigured as error:
        sys.exit(f"{error}")
    except DatabaseError as error:
        if not is_away(error):
            raise
        said = " ".join(str(error).split())
        sys.exit(f"The database cannot be reached: {said}. “{places.COMMAND} doctor” says more.")


def needs_schema(command: Any) -> bool:
    """Ours do, unless they say otherwise; of Django's, those that say so."""
    ours = type(command).__module__.startswith("apps.")
    return command.requires_migrations_checks or (
        ours and not getattr(command, "any_schema", False)
    )


if __name__ == "__main__":
    main()
