"""The job that asks variants of the judge about the same runs on which people decided: the rubric
in use and a new one on held-back decisions, or the strategies for the blamed step on confirmed
steps.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from apps.core.kinds import Progress
from apps.core.models import Job, JobState, Project
from apps.failures.actions.modes import ensure_modes
from apps.failures.judge import batch, people, rubrics
from apps.failures.judge.comparison import Answer, better, compare
from apps.failures.judge.measuring import cost_of_each, questions_about, verdict_of
from apps.failures.judge.people import Decision
from apps.failures.judge.questions import LOST_AFTER, Stored
from apps.failures.judge.strategies import STRATEGIES
from apps.failures.models import JudgeMeasurement, Rubric
from apps.trajectories.models import Trajectory, with_content

Steps = Generator[Progress, Any, dict]
MOST_RUNS = 400  # newest decisions
FEWEST_STEPS = 10  # confirmed steps, to compare strategies
ROUNDS = 4  # of questions, after which progress shows and a cancel is noticed
Kind = JudgeMeasurement.Kind


class Stopped(Exception):
    """The sentence says why not everything was asked. What was is kept, and not paid for again."""


def runs_for(kind: str, rubrics_used: Sequence[Rubric]) -> list[Decision]:
    """The decisions that are measured on. None of them is an example of a rubric that is."""
    project = rubrics_used[0].project
    examples = {run for rubric in rubrics_used for run in _example_runs(rubric)}
    decided = [row for row in people.decisions(project) if row.run not in examples]
    if kind == Kind.RUBRICS:
        return [row for row in decided if row.held_back][:MOST_RUNS]
    return [row for row in decided if row.failed and row.step is not None][:MOST_RUNS]


def _example_runs(rubric: Rubric) -> list[UUID]:
    return list(rubric.examples.values_list("trajectory_id", flat=True))


def lacking(kind: str, decided: Sequence[Decision]) -> str:
    """How many decisions are missing; empty if there are enough."""
    if kind == Kind.RUBRICS:
        return people.Counts.of(decided).lacking_for_report()
    missing = FEWEST_STEPS - len(decided)
    if missing <= 0:
        return ""
    return (
        f"{missing} more failures confirmed with the step that is to blame are needed; there are"
        f" {len(decided)}."
    )


def variants_of(kind: str, rubric: Rubric, other: Rubric | None) -> list[tuple[Rubric, str]]:
    """(rubric, strategy) of each variant; the first is what the others are compared with."""
    if kind == Kind.RUBRICS:
        assert other is not None
        return [(other, rubrics.strategy_of(other)), (rubric, rubrics.strategy_of(rubric))]
    return [(rubric, strategy) for strategy in STRATEGIES]


def forecast(variants: Sequence[tuple[Rubric, str]], decided: Sequence[Decision]) -> float | None:
    """What asking costs at most, in USD, from some of the runs; None without a price."""
    if not decided:
        return 0.0
    usd = 0.0
    for rubric, strategy in variants:
        server = rubrics.server_of(rubric)
        if not server.is_priced:
            return None
        usd += cost_of_each(rubric, server, decided, strategy) * len(decided)
    return usd


def name_of(kind: str, variants: Sequence[tuple[Rubric, str]]) -> str:
    if kind == Kind.STRATEGIES:
        return f"Methods for finding the step, {variants[0][0]}"
    (before, _), (after, _) = variants
    return f"Rubric {after.version} against {before.version}"


def spec_of(
    kind: str, variants: Sequence[tuple[Rubric, str]], decided: Sequence[Decision], most_usd: float
) -> dict[str, Any]:
    """Frozen: what is measured, on which decisions."""
    return {
        "variants": [
            {
                "rubric": rubric.pk,
                "version": rubric.version,
                "digest": rubric.digest,
                "strategy": strategy,
                "name": strategy if kind == Kind.STRATEGIES else f"version {rubric.version}",
            }
            for rubric, strategy in variants
        ],
        "decisions": people.frozen(decided),
        "most_usd": most_usd,
        "earlier": earlier(variants[0][0].project, kind),
    }


def earlier(project: Project, kind: str) -> int:
    """How often these decisions were measured on before: whoever chooses among many versions by the
    same decisions finds one that looks better than it is.
    """
    return JudgeMeasurement.objects.filter(
        project=project, kind=kind, state=JobState.SUCCEEDED
    ).count()


def asked(
    job: Job, rubric: Rubric, entries: Sequence[Stored], most_usd: float, is_counted: bool = True
) -> Generator[Progress, Any, None]:
    """Asks some at a time; `cursor["usd"]` is what the job has spent so far. Raises Stopped."""
    size = ROUNDS * rubric.concurrency
    for part in (entries[at : at + size] for at in range(0, len(entries), size)):
        report = batch.Report()
        left = most_usd - job.cursor.get("usd", 0.0)
        ask = partial(batch.ask_all, rubric, part, report, most_usd=left, is_trial=True)
        yield Progress(done=job.done, label=job.label, cursor=job.cursor, outside=ask)
        job.cursor["usd"] = job.cursor.get("usd", 0.0) + report.spent_usd
        job.done += len(part) * is_counted
        yield Progress(done=job.done, label=job.label, cursor=job.cursor)
        if report.later and not report.stopped:
            plural = "" if report.later == 1 else "s"
            report.stopped = (
                f"Another worker may still be asking {report.later} question{plural} of this."
                f" Resume it in {LOST_AFTER.seconds // 60} minutes."
            )
        if report.stopped:
            raise Stopped(report.stopped)


def steps(job: JudgeMeasurement) -> Steps:
    ensure_modes(job.project)
    decided = {UUID(row["run"]): row for row in job.spec["decisions"]}
    found = Trajectory.objects.filter(project=job.project, pk__in=decided)
    rows = with_content(list(found.order_by("-pk")))
    named = Rubric.objects.filter(project=job.project).in_bulk()
    job.done, measured = 0, []
    for variant in job.spec["variants"]:
        rubric, strategy = named[variant["rubric"]], variant["strategy"]
        entries = questions_about(rubric, rows, job.kind, strategy)
        job.label = variant["name"]
        yield from asked(job, rubric, entries, job.spec["most_usd"])
        answers = [
            _answer(entry, decided[row.pk]) for row, entry in zip(rows, entries, strict=True)
        ]
        measured.append((variant["name"], answers))
    variants = compare(measured)
    measure = "step" if job.kind == Kind.STRATEGIES else "agreement"
    return {
        "variants": variants,
        "better": better(variants, measure),
        "usd": job.cursor.get("usd", 0.0),
    }


def _answer(entry: Stored, decision: dict[str, Any]) -> Answer:
    row = entry.row
    return Answer(
        verdict_of(entry),
        decision["failed"],
        decision["mode"],
        decision["step"],
        entry.question.steps,
        row.cost_usd if row else 0.0,
    )
