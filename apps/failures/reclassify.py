"""What the current rules would change in the past: a job that writes a diff, which is previewed
before it is applied.

Both halves process trajectories in the order of their ids, a chunk per step. People's and the
judge's decisions never change: their rows only store what the rules would have said. The judge's
verdict stays next to the rules' new diagnosis, and decides if that has become weak.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from uuid import UUID

from django.db import IntegrityError, models, transaction
from django.db.models import Count, F, Q

from apps.core import jobs
from apps.core.actions import audit
from apps.core.kinds import Progress
from apps.core.models import JobState, Project
from apps.failures.actions.diagnose import inputs_of, is_undecided, label_with, source_of
from apps.failures.actions.modes import ensure_modes
from apps.failures.classify import Diagnosis, classify
from apps.failures.clusters import store
from apps.failures.judge.precedence import Label, rules_mode
from apps.failures.models import (
    Failure,
    FailureState,
    Reclassification,
    ReclassificationChange,
    Source,
)
from apps.failures.outcomes.estimates import draw, standing
from apps.trajectories.models import Trajectory, with_content

CHUNK = 250
Decision = Reclassification.Decision
Steps = Generator[Progress, None, dict]
# From a change: diagnoses that nobody has decided on, and what people decided.
OF_OPEN = Q(trajectory__failure=None) | Q(
    ~Q(trajectory__failure__source=Source.PERSON), trajectory__failure__state=FailureState.OPEN
)
OF_PEOPLE = Q(trajectory__failure__source=Source.PERSON)


class ReclassifyError(Exception):
    """The text is for the person."""


def start(*, project: Project, by: Any) -> Reclassification:
    """Queues a preview over all trajectories. Raises ReclassifyError if one is running or waiting
    to be applied.
    """
    if project.reclassifications.active().exists():
        raise ReclassifyError("A preview is already running. Wait for it, or discard it.")
    job = Reclassification(project=project, name="Reclassify", total=project.trajectories.count())
    try:
        return jobs.submit(job, by=by)
    except IntegrityError as error:
        raise ReclassifyError("Apply or discard the last preview first.") from error


def steps(job: Reclassification) -> Steps:
    return _make_changes(job) if job.decision == Decision.APPLIED else _compare(job)


# Comparing


def _compare(job: Reclassification) -> Steps:
    rows, done = Trajectory.objects.filter(project=job.project).order_by("pk"), job.done
    while chunk := with_content(list(_after(rows, "pk", job)[:CHUNK])):
        diagnoses = {pk: classify(given) for pk, given in inputs_of(job.project, chunk).items()}
        ReclassificationChange.objects.bulk_create(_changes(job, diagnoses), ignore_conflicts=True)
        done += len(chunk)
        yield _progress(job, done, chunk[-1].pk)
    return {}


def _after(rows: models.QuerySet[Any], column: str, job: Reclassification) -> models.QuerySet[Any]:
    """Those that no step has processed yet."""
    return rows.filter(**{f"{column}__gt": UUID(job.cursor["after"])}) if job.cursor else rows


def _progress(job: Reclassification, done: int, last: UUID) -> Progress:
    job.cursor = {"after": str(last)}
    return Progress(done=done, cursor=job.cursor)


def _changes(
    job: Reclassification, diagnoses: dict[Any, Diagnosis | None]
) -> list[ReclassificationChange]:
    stored = Failure.objects.filter(trajectory_id__in=diagnoses).select_related("mode")
    failures = {failure.trajectory_id: failure for failure in stored}
    words = {pk: _word(diagnosis, failures.get(pk)) for pk, diagnosis in diagnoses.items()}
    return [
        _change(job, pk, failures.get(pk), word)
        for pk, word in words.items()
        if _differs(failures.get(pk), word)
    ]


def _word(diagnosis: Diagnosis | None, failure: Failure | None) -> Label:
    return label_with(
        diagnosis or standing(failure), failure.evidence if failure and _is_open(failure) else ()
    )


def _change(
    job: Reclassification, pk: Any, failure: Failure | None, word: Label
) -> ReclassificationChange:
    return ReclassificationChange(
        reclassification=job,
        trajectory_id=pk,
        before=word_of(failure),
        after=word.mode,
        blamed_message=word.blamed,
        evidence=word.evidence,
    )


def _is_open(failure: Failure | None) -> bool:
    return failure is None or is_undecided(failure)


def word_of(failure: Failure | None) -> str:
    """The current result: a mode's slug, or empty if there is no failure or it was dismissed."""
    return "" if failure is None or failure.state == FailureState.DISMISSED else failure.mode.slug


def _differs(failure: Failure | None, word: Label) -> bool:
    if not _is_open(failure):
        assert failure is not None
        return word.mode != word_of(failure) or word.mode != failure.rule_mode
    if failure is None or not word.mode:
        return word_of(failure) != word.mode
    now = word.mode, word.blamed, rules_mode(word.evidence)
    return now != (failure.mode.slug, failure.blamed_message, failure.rule_mode)


# Applying


def apply(*, job: Reclassification, by: Any) -> bool:
    """False if it is not (or no longer) ready. A worker makes the changes, a chunk at a time."""
    ready = Reclassification.objects.filter(state=JobState.SUCCEEDED, decision=Decision.PENDING)
    detail = {"changes": changing(job).count()}
    afresh = {"decision": Decision.APPLIED, "cursor": {}, "done": 0, "total": job.changes.count()}
    return jobs.restart(job, among=ready, by=by, action="applied", detail=detail, **afresh)


@transaction.atomic
def discard(*, job: Reclassification, by: Any) -> bool:
    """Also one that is still running: its worker removes what it has found. False if it is too
    late.
    """
    pending = Reclassification.objects.filter(pk=job.pk, decision=Decision.PENDING)
    open_states = (JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED)
    if not pending.filter(state__in=open_states).update(decision=Decision.DISCARDED):
        return False
    audit("reclassification.discarded", project=job.project, by=by, target=job)
    job.refresh_from_db()
    if not jobs.cancel(job, by=by):
        ended(job)
    return True


def ended(job: Reclassification) -> None:
    if job.decision == Decision.DISCARDED:
        ReclassificationChange.objects.filter(reclassification=job).delete()


def _make_changes(job: Reclassification) -> Steps:
    rows, done = job.changes.order_by("trajectory_id"), job.done
    while chunk := list(_after(rows, "trajectory_id", job)[:CHUNK]):
        _make(job.project, chunk)
        done += len(chunk)
        progress = _progress(job, done, chunk[-1].trajectory_id)
        yield progress
        # In a separate transaction: clustering locks clusters first and then failures.
        ids = [change.trajectory_id for change in chunk]
        store.place(job.project, list(Failure.objects.filter(trajectory_id__in=ids, cluster=None)))
        yield progress
    return {}


def _make(project: Project, chunk: list[ReclassificationChange]) -> None:
    """Makes the changes whose diagnosis still matches the diff; for decided ones only the rules'
    mode is stored.
    """
    modes = ensure_modes(project)
    rows = Failure.objects.filter(trajectory_id__in=[change.trajectory_id for change in chunk])
    locked = rows.select_for_update(of=("self",)).prefetch_related("mode").order_by("trajectory_id")
    failures = {failure.trajectory_id: failure for failure in locked}
    made, changed, gone = [], [], []
    for change in chunk:
        failure = failures.get(change.trajectory_id)
        if not _is_open(failure):
            Failure.objects.filter(pk=failure.pk).update(rule_mode=rules_mode(change.evidence))
        elif word_of(failure) != change.before or change.after not in {"", *modes}:
            continue  # classified again since, or the mode is gone
        elif not change.after:
            gone.append(failure)
        else:
            row = failure or Failure(project=project, trajectory_id=change.trajectory_id)
            row.mode, row.rule_mode = modes[change.after], rules_mode(change.evidence)
            row.source = source_of(change.evidence)
            row.blamed_message, row.evidence, row.cluster = (
                change.blamed_message,
                change.evidence,
                None,
            )
            (changed if failure else made).append(row)
    # A second mode, split off by a person, is their decision and stays.
    Failure.objects.filter(pk__in=[failure.pk for failure in gone if failure], also=None).delete()
    Failure.objects.bulk_update(
        changed, ["mode", "rule_mode", "source", "blamed_message", "evidence", "cluster"]
    )
    Failure.objects.bulk_create(made, ignore_conflicts=True)
    draw(project, [change.trajectory_id for change in chunk])


# Reading


def changing(job: Reclassification) -> models.QuerySet[ReclassificationChange]:
    """The changes of undecided diagnoses: those that applying makes, or made."""
    rows = ReclassificationChange.objects.filter(reclassification=job)
    return rows.filter(OF_OPEN).select_related("trajectory")


def matrix(job: Reclassification) -> list[dict[str, Any]]:
    """[{before, after, n}], most frequent first. If the mode is the same, only the blamed step
    moved.
    """
    rows = changing(job).order_by().values("before", "after").annotate(n=Count("pk"))
    return list(rows.order_by("-n", "before", "after"))


def of_people(job: Reclassification) -> dict[str, int]:
    """{decided: number decided by people among the processed ones, agree, disagree: with the
    current rules}
    """
    decided = Failure.objects.filter(project=job.project, source=Source.PERSON).exclude(
        state=FailureState.OPEN
    )
    if job.is_active and not job.is_applying:
        decided = (
            decided.filter(trajectory_id__lte=job.cursor["after"]) if job.cursor else decided.none()
        )
    n = decided.count()
    against = (
        ReclassificationChange.objects.filter(OF_PEOPLE, reclassification=job)
        .exclude(before=F("after"))
        .count()
    )
    return {"decided": n, "agree": max(0, n - against), "disagree": against}
