"""`manage.py routes`: writes what every route declares into docs/routes.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandParser

from apps.core.routes import document

TABLE = Path("docs/routes.md")


class Command(BaseCommand):
    any_schema = True
    help = f"Writes {TABLE}: who may use each route, and what of a hold-out it can show."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--print", action="store_true", help="print the page instead")

    def handle(self, **options: Any) -> None:
        if options["print"]:
            self.stdout.write(document())
        else:
            (Path(settings.BASE_DIR) / TABLE).write_text(document())
