"""`manage.py training_config`: exports a run's settings as YAML, checks a file, estimates its cost,
or starts the run that it describes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError, CommandParser

from apps.core.http import uuid_of
from apps.core.management.projects import find_project
from apps.core.models import Project
from apps.reviews.actions import TrainingLocked
from apps.training.actions import TrainingError
from apps.training.budget.estimate import estimate
from apps.training.budget.words import in_words
from apps.training.comparison import runs_of
from apps.training.config_yaml import MOST_SEEDS, ConfigError, config_of, read, rows_of, write
from apps.training.starts import asked_from, start_from


class Command(BaseCommand):
    help = (
        "Exports a run's settings as YAML; checks a training config, estimates its cost, or starts"
        " the run that it describes."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=("export", "check", "estimate", "start"))
        parser.add_argument("what", help="The id of a run to export, or a YAML file")
        parser.add_argument("--project", help="Project slug; optional if there is only one project")
        parser.add_argument("--user", help="Who starts the run: a username")
        parser.add_argument(
            "--seeds", type=int, default=1, choices=range(1, MOST_SEEDS + 1), metavar="N"
        )

    def handle(self, *, action: str, what: str, project: str | None, **options: Any) -> None:
        """Exits with status 2 if anything is wrong with the file or the names in it."""
        try:
            found = find_project(project)
            if action == "export":
                self.stdout.write(write(config_of(run_of(found, what))), ending="")
                return
            config = read(Path(what).read_text())
            rows_of(config, found)
            if action == "check":
                self.stdout.write(f"{what} is a training config of {found}.")
                return
            if action == "estimate":
                self.stdout.write(
                    in_words(estimate(asked_from(config, project=found, seeds=options["seeds"])))
                )
                return
            for run in start_from(
                config, project=found, by=user_of(options["user"]), seeds=options["seeds"]
            ):
                self.stdout.write(f"{run.pk} {run.name}")
        except (ConfigError, TrainingError, TrainingLocked, OSError, UnicodeDecodeError) as error:
            raise CommandError(str(error), returncode=2) from error


def run_of(project: Project, given: str) -> Any:
    pk = uuid_of(given)
    run = runs_of(project).filter(pk=pk).first() if pk else None
    if run is None:
        raise ConfigError(f"{project} has no training run with the id {given[:80]}.")
    return run


def user_of(name: str | None) -> Any:
    user = get_user_model().objects.filter(username=name or "").first()
    if user is None:
        raise ConfigError("Pass --user with the name of the user who starts the run.")
    return user
