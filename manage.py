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
SERVICES = {"demo", "store_answers"}
STACKS = {"up", "demo"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    from flywheel import embedded, interrupts

    command = sys.argv[1] if len(sys.argv) > 1 else ""
    is_stack = command in STACKS
    try:
        if is_stack:
            interrupts.heed(interrupts.interrupt_now)
        if command == "up":
            from flywheel import up

            up.main(sys.argv[2:])
        else:
            run_django(command)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except embedded.ServiceError as error:
        sys.exit(f"{error}")
    finally:
        if is_stack:
            embedded.stop_unused()


def run_django(command: str) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from apps.core.actor import ACTOR, COMMAND_LINE
    from flywheel import embedded

    try:
        if command and command not in NO_SERVICES and "--help" not in sys.argv:
            embedded.ensure()
        if command and command not in SERVICES:
            ACTOR.set(COMMAND_LINE)
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
