"""Examples in a rubric: runs on which a person and the judge disagreed, with what the person
decided. Only decisions for learning (`people`) can be one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from uuid import UUID

from apps.core.models import Project
from apps.failures.actions.decisions import Refused
from apps.failures.actions.diagnose import as_input
from apps.failures.judge import people, rubrics
from apps.failures.judge.measuring import HIDDEN
from apps.failures.judge.people import Decision
from apps.failures.judge.prompt import Example
from apps.failures.models import JudgeVerdict, Rubric, RubricExample
from apps.trajectories.models import Trajectory, with_content

OFFERED = 50


@dataclass(frozen=True)
class Disagreement:
    """A person's decision, and the newest verdict of the judge, which says something else."""

    decision: Decision
    verdict: JudgeVerdict

    @property
    def run(self) -> Trajectory | None:
        return self.verdict.trajectory


def offered(project: Project, decisions: Iterable[Decision] | None = None) -> list[Disagreement]:
    """The newest decisions for learning with which the judge disagrees on whether the run failed,
    or how. `decisions` are the project's, if they are already known.
    """
    decisions = people.decisions(project) if decisions is None else decisions
    decided = {row.run: row for row in decisions if not row.held_back}
    rows = JudgeVerdict.objects.filter(
        rubric__project=project, error="", trajectory__in=list(decided)
    )
    newest = {
        row.trajectory_id: row for row in rows.select_related("trajectory", "rubric").order_by("at")
    }
    found = [
        Disagreement(decision, newest[run])
        for run, decision in decided.items()
        if run in newest and _differs(decision, newest[run])
    ]
    return found[:OFFERED]


def _differs(decision: Decision, verdict: JudgeVerdict) -> bool:
    if decision.failed != bool(verdict.mode):
        return True
    return bool(decision.mode) and decision.mode != verdict.mode


def automatic(project: Project, count: int) -> list[UUID]:
    """The newest disagreements, failed and fine in turns."""
    runs: dict[bool, list[UUID]] = {True: [], False: []}
    for row in offered(project):
        runs[row.decision.failed].append(row.decision.run)
    turns = chain.from_iterable(zip_longest(runs[True], runs[False]))
    return [run for run in turns if run][:count]


def made(project: Project, runs: Collection[UUID], before: Rubric) -> list[RubricExample]:
    """Rows for these runs, in this order; those that `before` has stay as they are. Raises
    Refused.
    """
    kept = {row.trajectory_id: row for row in before.examples.all()}
    decided = {row.run: row for row in people.decisions(project)}
    new = [run for run in runs if run not in kept]
    for run in new:
        if run not in decided:
            raise Refused(f"Nobody has decided on the run {run}.", "runs")
        if decided[run].held_back:
            raise Refused(
                f"The decision on the run {run} is held back for the report, so it cannot be an"
                " example.",
                "runs",
            )
    rows = with_content(list(Trajectory.objects.filter(project=project, pk__in=new)))
    added = {row.pk: _example(row, decided[row.pk]) for row in rows}
    return [(kept | added)[run] for run in dict.fromkeys(runs) if run in kept or run in added]


def _example(row: Trajectory, decision: Decision) -> RubricExample:
    shown = Example.of(as_input(row) | HIDDEN, decision.failed, decision.mode, decision.step)
    return RubricExample(
        trajectory=row,
        shown=shown.shown,
        failed=decision.failed,
        mode=decision.mode,
        step=decision.step,
    )


def save(*, project: Project, runs: Iterable[UUID], by: object) -> Rubric | None:
    """A version of the newest rubric with these examples, not in use. Raises Refused."""
    last = project.rubrics.first()
    if last is None:
        raise Refused("Save a rubric with a server first.")
    chosen = list(dict.fromkeys(runs))
    if len(chosen) > rubrics.MOST_EXAMPLES:
        raise Refused(f"A rubric has at most {rubrics.MOST_EXAMPLES} examples.", "runs")
    fields = {name: getattr(last, name) for name in rubrics.FIELDS}
    rows = made(project, chosen, last)
    return rubrics.save_version(project=project, fields=fields, by=by, examples=rows)
