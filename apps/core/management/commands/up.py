"""`manage.py up`: everything one machine needs, in one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser
from django.db import connections

from apps.core.management.commands.prepare import prepare_installation
from flywheel import embedded
from flywheel.supervisor import Stack, StackError, claim_data_folder, require_free_port


class Command(BaseCommand):
    help = "Migrates the database and runs the web server, one worker per queue, and beat."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)

    def handle(self, *, host: str, port: int, **options: Any) -> None:
        with running_stack(self, host, port) as stack:
            self.stdout.write(
                self.style.SUCCESS(f"Flywheel is up at {stack.url} (Ctrl-C stops it)")
            )
            stack.serve_forever()


@contextmanager
def running_stack(
    command: BaseCommand, host: str, port: int, *, quiet: bool = False
) -> Iterator[Stack]:
    """Migrates, makes the first admin, starts all processes and yields once they are healthy. At
    the end everything is stopped, the embedded services too. Raises CommandError for what cannot
    start."""
    held = None
    try:
        require_free_port(host, port)
        stack = Stack(host, port, quiet=quiet)
        held = claim_data_folder(Path(settings.FLYWHEEL_DATA_DIR), stack.url)
        stack.heed_signals()
        prepare_installation(command)
        try:
            stack.start()
            stack.wait_healthy()
            yield stack
        finally:
            stack.stop()
    except StackError as error:
        raise CommandError(str(error)) from error
    finally:
        connections.close_all()
        embedded.stop_unused()
        if held is not None:
            os.close(held)
