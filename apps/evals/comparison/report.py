"""A complete comparison, as shown by the pages, the API and the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from apps.evals.comparison import groups, measures, modes, problems, tables
from apps.evals.comparison.components import components_of
from apps.evals.comparison.groups import Kind
from apps.evals.comparison.measures import Counts, Line
from apps.evals.comparison.modes import ModeLine
from apps.evals.comparison.problems import Problem
from apps.evals.comparison.tables import Tables
from apps.evals.costs import total_cost
from apps.evals.models import EvalRun


@dataclass(frozen=True)
class Comparison:
    """Evaluations, the baseline first. `comparable`: the numbers of those compared with it."""

    tables: Tables
    problems: list[Problem]
    comparable: list[int]

    @property
    def runs(self) -> Sequence[EvalRun]:
        return self.tables.runs

    @cached_property
    def lines(self) -> list[Line]:
        return measures.lines_of(
            measures.measures_of(self.tables), self.tables.groups, self.comparable
        )

    @cached_property
    def components(self) -> list[Line]:
        return measures.lines_of(components_of(self.tables), self.tables.groups, self.comparable)

    @cached_property
    def kinds(self) -> list[Kind]:
        return groups.kinds_of(self.tables, self.comparable, self._mode_names)

    @cached_property
    def modes(self) -> list[ModeLine]:
        return modes.lines_of(self.tables, self.comparable, self._mode_names)

    @cached_property
    def counts(self) -> list[Counts | None]:
        """Tasks won and lost, for each evaluation; None if it is not compared."""
        return [
            measures.counts_of(self.tables, at) if at in self.comparable else None
            for at in range(len(self.runs))
        ]

    @cached_property
    def _mode_names(self) -> Mapping[str, str]:
        return dict(self.runs[0].project.failure_modes.values_list("slug", "name"))

    def comparisons(self, lines: Sequence[Any]) -> int:
        """How many intervals of differences hold simultaneously in a table with these lines."""
        return len(lines) * len(self.comparable)


def compare(runs: Sequence[EvalRun], *, details: bool = False) -> Comparison:
    """`details`: components, modes and groups will be needed, too, so everything is read at
    once.
    """
    found = tables.read(runs, details=details)
    known = problems.problems_of(found)
    return Comparison(found, known, problems.comparable(found, known))


def as_json(found: Comparison) -> dict[str, Any]:
    """Everything but the tasks."""
    return {
        "runs": list(_runs(found)),
        "problems": [
            {
                "run": None if one.number is None else str(found.runs[one.number].pk),
                "text": one.text,
                "blocks": one.blocks,
            }
            for one in found.problems
        ],
        "correction": {
            "method": "bonferroni",
            "level": 0.95,
            "measures": found.comparisons(found.lines),
            "components": found.comparisons(found.components),
            "modes": found.comparisons(found.modes),
        },
        "measures": measures.sequence(found.lines),
        "components": measures.sequence(found.components),
        "groups": [groups.as_json(kind) for kind in found.kinds],
        "modes": list(modes.as_json(found.modes)),
    }


def _runs(found: Comparison) -> Iterator[dict[str, Any]]:
    for at, (run, counts) in enumerate(zip(found.runs, found.counts, strict=True)):
        success = next(
            (line.cells[at].difference for line in found.lines if line.measure.key == "success"),
            None,
        )
        yield {
            "id": str(run.pk),
            "model_version": str(run.model_version),
            "eval_set": str(run.eval_set),
            "split": run.split,
            "state": run.state,
            "metrics": run.result.get("metrics"),
            "cost_usd": total_cost(run),
            "success_difference": success and success.as_dict(),
            "tasks": counts and {"won": counts.won, "lost": counts.lost, "same": counts.same},
        }
