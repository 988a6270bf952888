"""`manage.py import_training_result FOLDER`: turns the result of an exported run into a model
version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.management.projects import find_project
from apps.training.engines import returned


class Command(BaseCommand):
    help = (
        "Imports the adapter and the metrics of a run that was exported for another engine: a"
        " folder or a zip archive."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, metavar="FOLDER")
        parser.add_argument("--project", help="Project slug; optional if there is only one project")

    def handle(self, *, path: Path, **options: Any) -> None:
        project = find_project(options["project"])
        if not path.exists():
            raise CommandError(f"{path} is missing.")
        try:
            if path.is_dir():
                given = returned.from_folder(path)
            else:
                file = path.open("rb")
                given = returned.from_files([(path.name, file)])
                given.opened.append(file)
            run = returned.import_result(project=project, returned=given, by=None)
        except returned.ResultError as error:
            raise CommandError(str(error)) from error
        if run.model_version is None:
            raise CommandError(f"{run.name}: {run.error}")
        self.stdout.write(f"{project.slug}: {run.model_version} from {run.name}")
