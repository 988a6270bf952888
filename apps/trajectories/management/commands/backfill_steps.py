from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.models import Project
from apps.trajectories.backfill import backfill


class Command(BaseCommand):
    help = (
        "Writes the steps and scores of runs that were stored by a version that had none. Flywheel"
        " can keep running, and the command can be run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--project", default="", help="slug of the project; all projects without it"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        slug = options["project"]
        projects = Project.objects.filter(slug=slug) if slug else Project.objects.order_by("pk")
        if slug and not projects:
            raise CommandError(f"There is no project “{slug}”.", returncode=2)
        for project in projects:
            done = 0
            for done in backfill(project):
                self.stdout.write(f"{project.slug}: {done:,} runs", ending="\r")
            self.stdout.write(f"{project.slug}: {done:,} runs without steps were read.")
