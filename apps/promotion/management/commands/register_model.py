"""`manage.py register_model FOLDER`: a base model that evaluations and training can start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils.text import slugify

from apps.core.models import Project
from apps.promotion.actions import PromotionError, channel_of, set_initial
from apps.registry.actions import ModelFolderError, register_base
from apps.registry.models import ModelVersion


class Command(BaseCommand):
    help = "Registers a base model (a transformers folder with safetensors) in a project."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, metavar="FOLDER")
        parser.add_argument("--project", help="Short name; may be left out where there is only one project")
        parser.add_argument("--name", help="Of the model; else the folder's")
        parser.add_argument("--live", action="store_true", help="Make it the first version of the channel “production”")

    def handle(self, *, folder: Path, live: bool, **options: Any) -> None:
        project, name = _project(options["project"]), slugify(options["name"] or folder.resolve().name)[:80]
        if not name:
            raise CommandError("Name the model with --name: letters, digits, hyphens.")
        try:
            version = register(project, name, folder, live)
        except (ModelFolderError, PromotionError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(
            f"{project.slug}: {version} from {folder.resolve()}" + (", live in production" if live else "")
        )


@transaction.atomic
def register(project: Project, name: str, folder: Path, live: bool) -> ModelVersion:
    version = register_base(project=project, name=name, folder=folder, by=None)
    if live:
        set_initial(channel=channel_of(project), version=version, by=None)
    return version


def _project(slug: str | None) -> Project:
    found = list(Project.objects.filter(slug=slug) if slug else Project.objects.all()[:2])
    if len(found) == 1:
        return found[0]
    known = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)[:20]) or "none"
    raise CommandError(f"Name a project with --project. There are: {known}.")
