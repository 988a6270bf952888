"""The job that trains a project's outcome model on people's decisions, queued by hand or
periodically after enough new decisions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Max
from django.utils import timezone

from apps.core import jobs
from apps.core.actions import audit
from apps.core.kinds import Progress
from apps.core.models import Project
from apps.failures.actions.diagnose import as_input, diagnose, inputs_of
from apps.failures.models import (
    Failure,
    FailureState,
    OutcomeCheck,
    OutcomeModel,
    OutcomeTraining,
    Source,
)
from apps.failures.outcomes import sketches
from apps.failures.outcomes.estimates import agent_of, facts_of
from apps.failures.outcomes.features import Usual, features, sizes
from apps.failures.outcomes.model import PRIOR
from apps.failures.outcomes.peers import NOBODY
from apps.failures.rules.reading import read
from apps.failures.rules.words import content_words
from apps.trajectories.models import Outcome, Trajectory, in_chunks, with_content

MOST = 4_000  # the newest decided runs, used for training
MOST_USUAL = 2_000  # runs whose sizes define what is usual
NEW_DECISIONS = 20  # or a tenth of the decisions that the model knows, whichever is more
MODELS_KEPT = 20
MOST_ESTIMATED_AGAIN, CHUNK = (
    20_000,
    500,
)  # newest runs of unknown outcome that a new model estimates again
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
    """Active projects with enough decisions that their newest model does not know, or with runs but
    no model.
    """
    return [project for project in Project.objects.running() if _is_due(project)]


def _is_due(project: Project) -> bool:
    if project.outcometrainings.active().exists():
        return False
    model = project.outcome_models.first()
    last = project.outcometrainings.aggregate(at=Max("created_at"))["at"]
    if last is not None and last > timezone.now() - timedelta(minutes=30):
        return False
    if model is None:
        return hasattr(project, "classifier") and project.trajectories.exists()
    return decisions(project) - model.decisions >= max(NEW_DECISIONS, model.decisions // 10)


def decisions(project: Project) -> int:
    """The number of decided runs: by people in triage, by checks, or by an outcome recorded with
    the run.
    """
    return len(decided(project))


def decided(project: Project) -> dict[UUID, bool]:
    """{id: whether the run failed} for the newest MOST decided runs. A person's decision overrides
    a recorded outcome.
    """
    known = project.trajectories.exclude(outcome_status=Outcome.UNKNOWN).order_by("-pk")
    found = {
        pk: status == Outcome.FAILURE
        for pk, status in known.values_list("pk", "outcome_status")[:MOST]
    }
    checks = OutcomeCheck.objects.filter(project=project, answer__in=["failed", "fine"]).order_by(
        "-trajectory_id"
    )
    found |= {
        pk: answer == "failed"
        for pk, answer in checks.values_list("trajectory_id", "answer")[:MOST]
    }
    cases = Failure.objects.filter(project=project, source=Source.PERSON).exclude(
        state=FailureState.OPEN
    )
    rows = cases.order_by("-trajectory_id").values_list("trajectory_id", "state")[:MOST]
    found |= {pk: state == FailureState.CONFIRMED for pk, state in rows}
    return dict(sorted(found.items(), reverse=True)[:MOST])


def steps(job: OutcomeTraining) -> Steps:
    """Train the model, then estimate the newest runs of unknown outcome again in chunks. A job that
    died continues with the next chunk.
    """
    project, cursor = job.project, {"done": 0, "after": None} | job.cursor
    yield Progress(done=cursor["done"], cursor=dict(cursor))
    if "result" not in cursor:
        cursor["result"] = _make_model(job)
        yield Progress(done=0, cursor=dict(cursor))
    rows = project.trajectories.filter(outcome_status=Outcome.UNKNOWN).order_by("-pk")
    while cursor["done"] < MOST_ESTIMATED_AGAIN and _is_newest(project, cursor["result"]["number"]):
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
    usual, answers = usual_of(project), decided(project)
    note, weights, measured = "", PRIOR, {}
    try:
        trained = train(list(_examples(project, answers, usual)))
        weights, measured = trained.weights, trained.measured
    except TooFew as few:
        note = str(few)
    number = (project.outcome_models.aggregate(last=Max("number"))["last"] or 0) + 1
    OutcomeModel.objects.create(
        project=project,
        number=number,
        weights=weights.as_json(),
        usual=usual.quantiles,
        measured=measured,
        note=note,
        decisions=len(answers),
    )
    old = list(project.outcome_models.values_list("pk", flat=True)[MODELS_KEPT:])
    OutcomeModel.objects.filter(pk__in=old).delete()
    result = {"number": number, "decisions": len(answers), "learned": bool(measured.get("learned"))}
    audit("outcome_model.made", project=project, by=job.created_by, **result)
    return result


def usual_of(project: Project) -> Usual:
    rows = project.trajectories.order_by("-pk")
    newest = Trajectory.objects.filter(pk__in=list(rows.values_list("pk", flat=True)[:MOST_USUAL]))
    return Usual.of(
        sizes(read(as_input(row)), facts_of(row)) for chunk in in_chunks(newest) for row in chunk
    )


def _examples(project: Project, answers: dict[UUID, bool], usual: Usual) -> Iterator[Any]:
    from apps.failures.outcomes.training import Example

    found = sketches.compared(project, list(answers))
    for chunk in in_chunks(
        Trajectory.objects.filter(project=project, pk__in=list(answers)).order_by("pk")
    ):
        inputs = inputs_of(project, chunk)
        for row in chunk:
            run = read(
                inputs[row.pk]
                | {
                    "outcome_status": "unknown",
                    "outcome_reason": "",
                    "outcome_label": "",
                }
            )
            run_features = features(
                run, facts_of(row), usual, words=True, compared=found.get(row.pk, NOBODY)
            )
            group = group_of(row, run.users[0][1] if run.users else "")
            yield Example(run_features, answers[row.pk], group, agent_of(row, run))


def group_of(row: Trajectory, request: str) -> str:
    """A key shared by runs of the same request: the task id if the run carries one, otherwise the
    words of its first request.
    """
    task = sketches.task_of(row)
    return f"task {task}" if task else " ".join(sorted(content_words(request))[:40])
