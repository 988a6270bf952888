#!/usr/bin/env python
import os
import signal
import sys

NO_SERVICES = {
    "help",
    "makemigrations",
    "collectstatic",
    "check",
    "startapp",
    "version",
    "--help",
    "--version",
    "spectacular",
}
SERVICES = {"up", "demo", "store_answers"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    from django.core.management import execute_from_command_line

    from apps.core.actor import ACTOR, COMMAND_LINE
    from flywheel import embedded

    if len(sys.argv) > 1 and sys.argv[1] not in NO_SERVICES and "--help" not in sys.argv:
        try:
            embedded.ensure()
        except embedded.ServiceError as error:
            sys.exit(f"{error}")
    if sys.argv[1:2] and sys.argv[1] not in SERVICES:
        ACTOR.set(COMMAND_LINE)
    try:
        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
