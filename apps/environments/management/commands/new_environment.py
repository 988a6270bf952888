"""`manage.py new_environment NAME`: a small package that works, in the folder of environments
(docs/own-environment.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser

from workers.lib.environments.packages.files import PackageProblem
from workers.lib.environments.packages.template import new_package


class Command(BaseCommand):
    help = (
        "Writes the package of a new environment: tools, state, tasks, verifier and tests, all of"
        " which work."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="Of the package: bug_tracker")
        parser.add_argument(
            "--into", type=Path, metavar="FOLDER", help="Instead of FLYWHEEL_ENVIRONMENTS_DIR"
        )

    def handle(self, *, name: str, into: Path | None, **options: Any) -> None:
        try:
            files = new_package(name)
        except PackageProblem as problem:
            raise CommandError(f"{problem.text} {problem.do}") from problem
        home = (into or Path(settings.FLYWHEEL_ENVIRONMENTS_DIR)) / name
        if home.exists():
            raise CommandError(f"{home} exists. Choose another name, or remove it.")
        for path, text in files.items():
            target = home / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        self.stdout.write(f"{home}\n  " + "\n  ".join(files))
        self.stdout.write(f"Try it: python manage.py check_environment {name}")
