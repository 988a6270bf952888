from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.intervals import wilson
from apps.core.models import Project
from apps.failures.judge import comparison
from apps.failures.judge.strategies import STRATEGIES

HEADER = (
    "strategy",
    "runs",
    "found",
    "step exact",
    "within one step",
    "same mode",
    "errors",
    "tokens in/out a run",
    "$ a run",
)


class Command(BaseCommand):
    help = (
        "Compares how the judge finds the blamed step, on confirmed cases of a project: accuracy"
        " and cost of each strategy."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project", help="its slug")
        parser.add_argument(
            "--limit", type=int, default=50, help="newest confirmed cases (%(default)s)"
        )
        parser.add_argument("--strategies", default=",".join(STRATEGIES), help="%(default)s")
        parser.add_argument(
            "--max-usd", type=float, default=1.0, help="no more is spent (%(default)s)"
        )

    def handle(self, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError("There is no such project.")
        strategies = options["strategies"].split(",")
        if unknown := set(strategies) - set(STRATEGIES):
            raise CommandError(
                f"Unknown: {', '.join(sorted(unknown))}. There are {', '.join(STRATEGIES)}."
            )
        rubric = project.rubrics.first()
        if rubric is None:
            raise CommandError("Save a rubric with a server first (Failures → Judge).")
        labels = comparison.labelled(project, options["limit"])
        if not labels:
            raise CommandError("No case is confirmed with a blamed step yet.")
        self.stdout.write("  ".join(HEADER))
        try:
            for score in comparison.compare(
                project, rubric, strategies, labels, max_usd=options["max_usd"]
            ):
                self.stdout.write("  ".join(_cells(score)))
        except comparison.Stopped as error:
            raise CommandError(str(error)) from error


def _cells(score: comparison.Score) -> list[str]:
    tokens = f"{score.usage.input_tokens / score.n:,.0f}/{score.usage.output_tokens / score.n:,.0f}"
    shares = [
        _share(hits, score.n)
        for hits in (score.found, score.exact, score.within_one, score.same_mode)
    ]
    return [
        score.strategy,
        str(score.n),
        *shares,
        str(score.errors),
        tokens,
        f"{score.usd / score.n:.4f}",
    ]


def _share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{hits / n:.0%} ({low:.0%} to {high:.0%})"
