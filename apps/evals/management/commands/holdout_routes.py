"""`manage.py holdout_routes`: writes the table of what every route can show of a hold-out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandParser

from apps.evals.holdout.routes import document

TABLE = Path("docs/holdout-routes.md")


class Command(BaseCommand):
    help = (
        f"Writes {TABLE}: each route, what of a hold-out it can show, who may see it, whether a"
        " view is counted."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--print", action="store_true", help="print the table instead")

    def handle(self, **options: Any) -> None:
        if options["print"]:
            self.stdout.write(document())
        else:
            (Path(settings.BASE_DIR) / TABLE).write_text(document())
