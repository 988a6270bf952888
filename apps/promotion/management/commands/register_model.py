"""`manage.py register_model FOLDER` or `--base-url URL --model NAME`: registers a model for
evaluations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils.text import slugify

from apps.core.management.projects import find_project
from apps.promotion.actions import PromotionError, channel_of, set_initial
from apps.registry.actions import ModelError, register_base, register_endpoint
from apps.registry.models import Dialect
from apps.registry.servers import ServerError, server_at


class Command(BaseCommand):
    help = (
        "Registers a base model (a transformers folder with safetensors) or a served one (an"
        " OpenAI-compatible server)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="FOLDER", nargs="?")
        parser.add_argument(
            "--base-url", help="Of an OpenAI-compatible server, ending in /v1; instead of a folder"
        )
        parser.add_argument("--model", help="The model's name on that server")
        parser.add_argument(
            "--key-variable",
            default="",
            help="Environment variable with its key (FLYWHEEL_OUTGOING_KEYS)",
        )
        parser.add_argument(
            "--dialect",
            choices=Dialect.values,
            default="",
            help="How it is asked there (docs/servers.md)",
        )
        parser.add_argument("--project", help="Short name; optional if there is only one project")
        parser.add_argument("--name", help="Of the model; else the folder's or the server's")
        parser.add_argument(
            "--live",
            action="store_true",
            help="Make it the first version of the channel “production”",
        )

    def handle(
        self, *, folder: Path | None, base_url: str, model: str, live: bool, **options: Any
    ) -> None:
        if (folder is None) != bool(base_url and model):
            raise CommandError("Give a folder, or both --base-url and --model.")
        project = find_project(options["project"])
        name = slugify(options["name"] or (folder.resolve().name if folder else model))[:80]
        if not name:
            raise CommandError("Name the model with --name: letters, digits, hyphens.")
        try:
            with transaction.atomic():
                if folder:
                    version = register_base(project=project, name=name, folder=folder, by=None)
                else:
                    server = server_at(project, base_url, options["key_variable"])
                    version = register_endpoint(
                        project=project,
                        name=name,
                        server=server,
                        served_as=model,
                        by=None,
                        dialect=options["dialect"],
                    )
                if live:
                    set_initial(channel=channel_of(project), version=version, by=None)
        except (ModelError, ServerError, PromotionError) as error:
            raise CommandError(str(error)) from error
        where = f"from {folder.resolve()}" if folder else f"from {model} at {base_url}"
        if version.moved_from:
            where = f"has these weights; it moved from {version.moved_from} to {version.base}"
        elif not version.is_new:
            where = f"is registered already {where}"
        self.stdout.write(
            f"{project.slug}: {version} {where}" + (", live in production" if live else "")
        )
