"""`manage.py up`: everything one machine needs, in one command. manage.py runs it without Django;
this is how `manage.py help` knows it."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from flywheel import up
from flywheel.supervisor import StackError


class Command(BaseCommand):
    any_schema = True
    help = up.HELP

    def add_arguments(self, parser: CommandParser) -> None:
        up.add_arguments(parser)

    def handle(self, *, host: str, port: int, **options: Any) -> None:
        try:
            up.run(host, port)
        except StackError as error:
            raise CommandError(str(error)) from error
