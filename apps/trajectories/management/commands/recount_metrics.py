from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core.models import Project
from apps.trajectories.metrics.recount import recount


class Command(BaseCommand):
    help = (
        "Recounts the data behind charts and totals from the trajectories. Flywheel can keep"
        " running."
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
            self.stdout.write(f"{project.slug}: {recount(project):,} trajectories counted.")
