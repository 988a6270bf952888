"""`manage.py import_tasks SET FILE`: adds tasks from a file to a draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.evals import importing
from apps.evals.actions import EvalSetError
from apps.evals.formats import FORMATS
from apps.evals.models import EvalSet, EvalSetState, Split


class Command(BaseCommand):
    help = (
        "Imports tasks into the draft of an eval set. Rows that cannot be read are reported and"
        " skipped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "set",
            metavar="SET",
            help="Name of the set, or PROJECT/NAME where several have that name",
        )
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--format", choices=("auto", *FORMATS), default="auto")
        parser.add_argument("--answers", type=Path, help="BFCL: the file of possible answers")
        parser.add_argument("--split", choices=Split.values, help="Override the split of all tasks")
        parser.add_argument(
            "--group", default=importing.BY_FILE, help="file, request, or metadata.NAME"
        )

    def handle(
        self, *, set: str, file: Path, format: str, answers: Path | None, **options: Any
    ) -> None:
        target = _draft(set)
        for path in filter(None, (file, answers)):
            if not path.is_file():
                raise CommandError(f"There is no file {path}.")
        split = options["split"]
        try:
            choice = importing.Choice(
                importing.format_of(file, file.name, format),
                split or Split.TRAIN,
                bool(split),
                options["group"],
            )
            done = importing.import_file(
                eval_set=target, path=file, name=file.name, choice=choice, by=None, answers=answers
            )
        except (importing.ImportProblem, EvalSetError) as error:
            raise CommandError(str(error)) from error
        self._report(target, done)

    def _report(self, target: EvalSet, done: importing.Imported) -> None:
        for problem in done.problems:
            self.stderr.write(problem)
        if done.bad > len(done.problems):
            self.stderr.write(f"… and {done.bad - len(done.problems):,} more.")
        self.stdout.write(
            f"{target}: {done.made:,} new, {done.duplicates:,} there already,"
            f" {done.guarded + done.leaking:,} too similar to the other side of a hold-out,"
            f" {done.bad:,} not readable."
        )
        if done.bad and not done.made + done.duplicates:
            raise CommandError("No row could be read.")


def _draft(name: str) -> EvalSet:
    project, _, slug = name.rpartition("/")
    sets = EvalSet.objects.filter(slug=slug, state=EvalSetState.DRAFT).select_related("project")
    found = list(sets.filter(project__slug=project) if project else sets)
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandError(
            f"Several projects have a draft “{slug}”: say {found[0].project.slug}/{slug}."
        )
    raise CommandError(
        f"There is no draft of a set “{name}”. Make the set, or a new version of it, first."
    )
