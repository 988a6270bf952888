"""`manage.py check_environment NAME`: what is right and wrong with a package, and what to do
(docs/own-environment.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser

from workers.lib.environments.packages.checking import Checked, check
from workers.lib.environments.packages.discovery import Found, discover

TESTS_S = 300.0
TASKS_S = 60.0  # longer than on the page, where somebody waits
MARKS = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


class Command(BaseCommand):
    help = (
        "Imports a package, starts its tasks, asks its verifier, plays the expected calls and runs"
        " its tests."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", nargs="?", help="Of the package; all without")
        parser.add_argument("--no-tests", action="store_true", help="Do not run its tests")

    def handle(self, *, name: str | None, no_tests: bool, **options: Any) -> None:
        every = discover(Path(settings.FLYWHEEL_ENVIRONMENTS_DIR))
        chosen = [found for found in every if name in (None, found.name)]
        if not chosen:
            known = ", ".join(found.name for found in every) or "none"
            raise CommandError(
                f"There is no package “{name}” in {settings.FLYWHEEL_ENVIRONMENTS_DIR}. Packages:"
                f" {known}."
            )
        broken = [found.name for found in chosen if not self._is_right(found, not no_tests)]
        if broken:
            raise CommandError(f"Not usable: {', '.join(dict.fromkeys(broken))}.")

    def _is_right(self, found: Found, with_tests: bool) -> bool:
        self.stdout.write(
            f"{found.name}"
            f" ({found.source}){'' if found.trusted else ', untrusted: runs in the sandbox'}"
        )
        checked = check(found, TASKS_S)
        if checked.is_usable and with_tests and found.trusted and found.project:
            _run_tests(found.project, checked)
        for one in checked.findings:
            self.stdout.write(f"  {MARKS[one.level]} {one.text}")
            for line in [*one.where.splitlines(), one.do]:
                if line:
                    self.stdout.write(f"          {line}")
        if found.digest:
            self.stdout.write(f"  digest  {found.digest[:12]}")
        return checked.is_usable


def _run_tests(project: Path, checked: Checked) -> None:
    if not (project / "tests").is_dir():
        checked.add("warning", "It has no tests.", f"Put them into {project / 'tests'}.")
        return
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(project / "tests"),
    ]
    env = os.environ | {"PYTHONPATH": str(settings.BASE_DIR), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=project, env=env, capture_output=True, text=True, timeout=TESTS_S
        )
    except subprocess.TimeoutExpired:
        checked.add("error", f"Its tests took longer than {TESTS_S:g} s.", "Make them faster.")
        return
    if "No module named pytest" in done.stderr:
        checked.add(
            "warning", "Its tests were not run: pytest is not installed here.", "pip install pytest"
        )
        return
    last = next(
        (line for line in reversed(done.stdout.strip().splitlines()) if line.strip()), "nothing"
    )
    if done.returncode:
        checked.add(
            "error",
            f"Its tests failed: {last.strip('= ')}",
            "Correct the test or the package.",
            done.stdout[-3000:],
        )
    else:
        checked.add("ok", f"Its tests: {last.strip('= ')}")
