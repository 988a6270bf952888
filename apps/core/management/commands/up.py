"""`manage.py up`: everything one machine needs, in one command."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.management.commands.prepare import prepare_installation
from flywheel.supervisor import Stack, StackError, require_free_port


class Command(BaseCommand):
    help = "Migrates the database and runs the web server, one worker per queue, and beat."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *, host: str, port: int, **options: Any) -> None:
        stack = prepare(self, host, port)
        try:
            stack.start()
            stack.wait_healthy()
            self.stdout.write(self.style.SUCCESS(f"Flywheel is up at {stack.url} (Ctrl-C stops it)"))
            stack.serve_forever()
        except StackError as error:
            raise CommandError(str(error)) from error
        finally:
            stack.stop()


def prepare(command: BaseCommand, host: str, port: int, *, quiet: bool = False) -> Stack:
    """Migrations, static files, the first admin; signals stop the stack. Raises CommandError if the port is taken."""
    try:
        require_free_port(host, port)
    except StackError as error:
        raise CommandError(str(error)) from error
    prepare_installation(command)
    stack = Stack(host, port, quiet=quiet)
    stack.heed_signals()
    return stack
