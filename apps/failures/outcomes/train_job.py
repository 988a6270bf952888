"""The job that trains a project's outcome model on people's decisions, queued by hand or
periodically after enough new decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Count, Exists, Max, OuterRef, Q, Subquery, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import audit
from apps.core.kinds import Progress
from apps.core.models import ACTIVE_STATES, Project
from apps.failures.actions.diagnose import as_input, diagnose, inputs_of
from apps.failures.models import (
    Failure,
    FailureState,
    OutcomeCheck,
    OutcomeEstimate,
    OutcomeModel,
    OutcomeTraining,
    Source,
)
from apps.failures.outcomes.estimates import agent_of, facts_of, verdicts_of
from apps.failures.outcomes.features import LOOKED_AT, Usual, features, sizes, words_of
from apps.failures.outcomes.model import FEWEST_FAILED, FEWEST_FINE, Weights
from apps.failures.rules.reading import read
from apps.trajectories.models import HourlyCount, Outcome, Trajectory, in_chunks, with_content

if TYPE_CHECKING:
    from apps.failures.outcomes.training import Example

MOST = 4_000  # the newest decided runs, used for training
MOST_USUAL = 2_000  # runs whose sizes define what is usual
NEW_DECISIONS = 20  # or a tenth of the decisions that the model knows, whichever is more
PAUSE = timedelta(minutes=30)  # after a training
DECIDING = (OutcomeCheck.Answer.FAILED, OutcomeCheck.Answer.FINE)
WITHOUT_ONE = Q(trajectory__outcome_status=Outcome.UNKNOWN)
MODELS_KEPT = 20
MOST_ESTIMATED_AGAIN, CHUNK = (
    20_000,
    500,
)  # newest runs of unknown outcome that a new model estimates again
WITHOUT_OUTCOME = {"outcome_status": "unknown", "outcome_reason": "", "outcome_label": ""}
Steps = Generator[Progress, None, dict]


def start(*, project: Project, by: Any) -> OutcomeTraining:
    """Queue a training; if one is already active, return that."""
    try:
        return jobs.submit(
            OutcomeTraining(project=project, name="Train the outcome model", total=_total(project)),
            by=by,
        )
    except IntegrityError:
        return project.outcometrainings.active().first() or start(project=project, by=by)


def _total(project: Project) -> int:
    """The number of runs that will be estimated again."""
    return min(
        MOST_ESTIMATED_AGAIN, project.trajectories.filter(outcome_status=Outcome.UNKNOWN).count()
    )


def due() -> list[Project]:
    """Active projects with enough decisions that their newest model does not know."""
    of_project = {"project": OuterRef("pk")}
    lately = Q(state__in=ACTIVE_STATES) | Q(created_at__gt=timezone.now() - PAUSE)
    newest = OutcomeModel.objects.filter(**of_project).order_by("-number")
    projects = Project.objects.running().annotate(
        known=Coalesce(Subquery(newest.values("decisions")[:1]), 0)
    )
    at_most = _decided_at_most()
    return [
        project
        for project in projects.exclude(
            Exists(OutcomeTraining.objects.filter(lately, **of_project))
        )
        if _are_enough(at_most[project.pk], project.known)
        and _are_enough(len(decided(project)), project.known)
    ]


def _are_enough(decisions: int, known: int) -> bool:
    return decisions - known >= max(NEW_DECISIONS, known // 10)


def _decided_at_most() -> Counter[int]:
    """How many runs of each project are decided, or fewer, for all projects in three queries: by
    their outcomes as they are counted by hour, and people's decisions on runs without one.
    """
    found: Counter[int] = Counter()
    decisions = Failure.objects.filter(source=Source.PERSON).exclude(state=FailureState.OPEN)
    for rows, count in (
        (HourlyCount.objects.exclude(outcome_status=Outcome.UNKNOWN), Sum("trajectories")),
        (OutcomeCheck.objects.filter(WITHOUT_ONE, answer__in=DECIDING), Count("pk")),
        (decisions.filter(WITHOUT_ONE), Count("pk")),
    ):
        found.update(dict(rows.order_by().values_list("project").annotate(n=count)))
    return Counter({project: min(n, MOST) for project, n in found.items()})


@dataclass(frozen=True)
class Decision:
    """Whether a run failed. `at`: when a person said so; None if it is the recorded outcome.
    `drawn`: the run was drawn for a check.
    """

    failed: bool
    at: datetime | None = None
    drawn: bool = False


def needed(project: Project) -> str:
    """What is needed before anything can be learned, and how much of it there is; empty if there
    is enough.
    """
    answers = decided(project).values()
    failed = sum(answer.failed for answer in answers)
    if failed >= FEWEST_FAILED and len(answers) - failed >= FEWEST_FINE:
        return ""
    return (
        f"Decisions on at least {FEWEST_FAILED} failed and {FEWEST_FINE} successful runs are"
        f" needed. So far: {failed:,} failed, {len(answers) - failed:,} successful."
    )


def decided(project: Project) -> dict[UUID, Decision]:
    """The newest MOST decided runs: by people in triage, by checks, or by an outcome recorded with
    the run. A person's decision overrides a recorded outcome.
    """
    known = project.trajectories.exclude(outcome_status=Outcome.UNKNOWN).order_by("-pk")
    found = {
        pk: Decision(status == Outcome.FAILURE)
        for pk, status in known.values_list("pk", "outcome_status")[:MOST]
    }
    checks = OutcomeCheck.objects.filter(project=project, answer__in=DECIDING)
    answers = checks.order_by("-trajectory_id").values_list("pk", "answer", "at", "probability")
    found |= {
        pk: Decision(answer == "failed", at, bool(chance))
        for pk, answer, at, chance in answers[:MOST]
    }
    cases = Failure.objects.filter(project=project, source=Source.PERSON).exclude(
        state=FailureState.OPEN
    )
    rows = cases.order_by("-trajectory_id").values_list(
        "trajectory_id", "state", "decided_at", "trajectory__outcome_check__probability"
    )
    found |= {
        pk: Decision(state == FailureState.CONFIRMED, at, bool(chance))
        for pk, state, at, chance in rows[:MOST]
    }
    return dict(sorted(found.items(), reverse=True)[:MOST])


def steps(job: OutcomeTraining) -> Steps:
    """Train a model; if what is in use has changed, estimate the newest runs of unknown outcome
    again in chunks. A job that died continues with the next chunk.
    """
    project, cursor = job.project, {"done": 0, "after": None} | job.cursor
    yield Progress(done=cursor["done"], cursor=dict(cursor))
    if "result" not in cursor:
        cursor["result"] = _make_model(job)
        yield Progress(done=0, cursor=dict(cursor))
    rows = project.trajectories.filter(outcome_status=Outcome.UNKNOWN).order_by("-pk")
    while cursor["result"]["changed"] and cursor["done"] < MOST_ESTIMATED_AGAIN:
        if not _is_newest(project, cursor["result"]["number"]):
            break
        left = rows.filter(pk__lt=UUID(cursor["after"])) if cursor["after"] else rows
        if not (ids := list(left.values_list("pk", flat=True)[:CHUNK])):
            break
        diagnose(
            project,
            with_content(
                list(Trajectory.objects.filter(project=project, pk__in=ids).order_by("pk"))
            ),
        )
        cursor |= {"done": cursor["done"] + len(ids), "after": str(ids[-1])}
        yield Progress(done=cursor["done"], cursor=dict(cursor))
    return cursor["result"] | {"estimated_again": cursor["done"]}


def _is_newest(project: Project, number: int) -> bool:
    return project.outcome_models.aggregate(last=Max("number"))["last"] == number


def _make_model(job: OutcomeTraining) -> dict[str, Any]:
    from apps.failures.outcomes.training import TooFew, train

    project = job.project
    usual, answers, in_use = usual_of(project), decided(project), OutcomeModel.in_use(project)
    number = (project.outcome_models.aggregate(last=Max("number"))["last"] or 0) + 1
    model = OutcomeModel(project=project, number=number, decisions=len(answers))
    try:
        trained = train(
            list(_examples(project, answers, usual)),
            Weights.from_json(in_use.weights) if in_use else None,
        )
        model.measured, model.note = trained.measured, trained.why_not
        if not trained.why_not:
            model.is_better, model.weights = True, trained.weights.as_json()
            model.usual = usual.quantiles
    except TooFew as few:
        model.note = str(few)
    model.save()
    in_use = OutcomeModel.in_use(project)
    old = project.outcome_models.exclude(pk=in_use and in_use.pk)[MODELS_KEPT:]
    OutcomeModel.objects.filter(pk__in=list(old.values_list("pk", flat=True))).delete()
    result = {"number": number, "decisions": len(answers), "is_better": model.is_better}
    audit("outcome_model.made", project=project, by=job.created_by, **result)
    stale = OutcomeEstimate.objects.filter(project=project).exclude(model=in_use)
    return result | {"changed": model.is_better or stale.exists()}


def usual_of(project: Project) -> Usual:
    rows = project.trajectories.order_by("-pk")
    newest = Trajectory.objects.filter(pk__in=list(rows.values_list("pk", flat=True)[:MOST_USUAL]))
    return Usual.of(
        sizes(read(as_input(row)), facts_of(row)) for chunk in in_chunks(newest) for row in chunk
    )


def _examples(
    project: Project, answers: Mapping[UUID, Decision], usual: Usual
) -> Iterator[Example]:
    """A verdict counts only if it was made before a person decided: of runs that people or the
    outcome said to have failed the judge is asked more often, and it reads the outcome.
    """
    from apps.failures.outcomes.training import Example

    for chunk in in_chunks(
        Trajectory.objects.filter(project=project, pk__in=list(answers)).order_by("pk")
    ):
        inputs, verdicts = inputs_of(project, chunk), verdicts_of([row.pk for row in chunk])
        for row in chunk:
            decision, verdict = answers[row.pk], verdicts.get(row.pk)
            if verdict and not (decision.at and verdict.at < decision.at):
                verdict = None
            run = read(inputs[row.pk] | WITHOUT_OUTCOME)
            yield Example(
                features(run, facts_of(row, verdict), usual),
                decision.failed,
                group_of(row, run.users[0][1] if run.users else ""),
                agent_of(row, run),
                decision.drawn,
            )


def group_of(row: Trajectory, request: str) -> str:
    """A key shared by runs of the same request: the task id if the run carries one, otherwise the
    words of its first request.
    """
    task = (row.metadata or {}).get("task_id")
    if task is None or isinstance(task, dict | list):
        return " ".join(sorted(words_of(request[:LOOKED_AT]))[:200])
    return f"task {task}"
