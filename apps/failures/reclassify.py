"""What the rules of today would change in the past: a job that writes a diff, looked at before it is applied.

Both halves go through trajectories in the order of their ids, a chunk in each transaction, on condition that `after` is
still what it was: a killed worker's job goes on where it stopped, and of two workers one stores a chunk.
An applied row whose `ended_at` is empty is being applied; then `total`, `looked` and `after` count changes.
People's decisions, and the judge's, are never changed: their rows only say what the rules would have said. What the judge said
beside the rules' word stays beside their new one, and decides where that has become weak.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from celery import current_app
from django.db import IntegrityError, InterfaceError, OperationalError, models, transaction
from django.db.models import Count, F, Q
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures.actions.diagnose import as_input, label_with, source_of
from apps.failures.actions.modes import ensure_modes
from apps.failures.classify import Diagnosis, classify
from apps.failures.clusters import store
from apps.failures.judge.precedence import Label, rules_mode
from apps.failures.models import Failure, FailureState, Reclassification, ReclassificationChange, Source
from apps.trajectories.models import Trajectory, with_content

log = logging.getLogger(__name__)
CHUNK = 250
LOST_AFTER = timedelta(minutes=2)
TASK = "failures.reclassify"
State = Reclassification.State
ACTIVE = Q(state=State.RUNNING) | Q(state=State.APPLIED, ended_at=None)
# From a change: diagnoses of the rules that nobody has decided on, and what people decided.
OF_OPEN = Q(trajectory__failure=None) | Q(
    trajectory__failure__source=Source.RULE, trajectory__failure__state=FailureState.OPEN
)
OF_PEOPLE = Q(trajectory__failure__source=Source.PERSON)


class ReclassifyError(Exception):
    """The text is for the person."""


def start(*, project: Project, by: Any) -> Reclassification:
    """Queues a look at all trajectories. Raises ReclassifyError where one waits to be applied or is under way."""
    if project.reclassifications.filter(ACTIVE).exists():
        raise ReclassifyError("One is under way. Wait for it, or discard it.")
    try:
        with transaction.atomic():
            made = Reclassification.objects.create(project=project, created_by=by, total=project.trajectories.count())
            audit("reclassification.started", project=project, by=by, target=made, trajectories=made.total)
            transaction.on_commit(lambda: _send(made.pk))
    except IntegrityError as error:
        raise ReclassifyError("The last diff is neither applied nor discarded. Decide on it first.") from error
    return made


def _send(pk: Any) -> None:
    """A broker that is away loses nothing: `resend_lost` sends it again."""
    try:
        current_app.send_task(TASK, args=[str(pk)], queue="default", retry=False)
    except (BrokerError, OSError) as error:
        log.warning("Reclassification %s waits for the broker: %s", pk, error)


def resend_lost() -> int:
    """Sends those again whose message or worker was lost; they go on where they stopped. Returns how many."""
    lost = Reclassification.objects.filter(ACTIVE, touched_at__lt=timezone.now() - LOST_AFTER)
    found = list(lost.values_list("pk", flat=True))
    for pk in found:
        if lost.filter(pk=pk).update(touched_at=timezone.now()):
            _send(pk)
    return len(found)


def run(pk: str) -> None:
    """The body of the task. An error ends the look at a diff and is shown; a database that is away does not."""
    try:
        while step(pk):
            pass
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        failed = {"state": State.FAILED, "ended_at": timezone.now(), "error": f"It broke: {error}"[:1000]}
        Reclassification.objects.filter(pk=pk).filter(ACTIVE).update(**failed)
        raise


def step(pk: str) -> bool:
    """One chunk; False where nothing is left to do, or another worker does it."""
    job = Reclassification.objects.filter(pk=pk).filter(ACTIVE).select_related("project").first()
    if job is None:
        return False
    return _look(job) if job.state == State.RUNNING else _apply_chunk(job)


def _advance(job: Reclassification, **values: Any) -> bool:
    """Conditional on nobody else having been here since `job` was read."""
    same = Reclassification.objects.filter(pk=job.pk, state=job.state, after=job.after, ended_at=None)
    return bool(same.update(touched_at=timezone.now(), **values))


# Looking


def _look(job: Reclassification) -> bool:
    rows = Trajectory.objects.filter(project=job.project).order_by("pk")
    rows = rows if job.after is None else rows.filter(pk__gt=job.after)
    chunk = with_content(list(rows[:CHUNK]))
    if not chunk:
        _advance(job, state=State.READY)
        return False
    diagnoses = {row.pk: classify(as_input(row)) for row in chunk}
    with transaction.atomic():
        if not _advance(job, after=chunk[-1].pk, looked=F("looked") + len(chunk)):
            return False
        ReclassificationChange.objects.bulk_create(_changes(job, diagnoses), ignore_conflicts=True)
    return True


def _changes(job: Reclassification, diagnoses: dict[Any, Diagnosis | None]) -> list[ReclassificationChange]:
    stored = Failure.objects.filter(trajectory_id__in=diagnoses).select_related("mode")
    failures = {failure.trajectory_id: failure for failure in stored}
    words = {pk: _word(diagnosis, failures.get(pk)) for pk, diagnosis in diagnoses.items()}
    return [_change(job, pk, failures.get(pk), word) for pk, word in words.items() if _differs(failures.get(pk), word)]


def _word(diagnosis: Diagnosis | None, failure: Failure | None) -> Label:
    return label_with(diagnosis, failure.evidence if failure and _is_open(failure) else ())


def _change(job: Reclassification, pk: Any, failure: Failure | None, word: Label) -> ReclassificationChange:
    return ReclassificationChange(
        reclassification=job,
        trajectory_id=pk,
        before=word_of(failure),
        after=word.mode,
        blamed_message=word.blamed,
        evidence=word.evidence,
    )


def _is_open(failure: Failure | None) -> bool:
    return failure is None or (failure.source == Source.RULE and failure.state == FailureState.OPEN)


def word_of(failure: Failure | None) -> str:
    """What stands: a mode's slug, or nothing where there is no failure or it was dismissed."""
    return "" if failure is None or failure.state == FailureState.DISMISSED else failure.mode.slug


def _differs(failure: Failure | None, word: Label) -> bool:
    if not _is_open(failure):
        assert failure is not None
        return word.mode != word_of(failure) or word.mode != failure.rule_mode
    return word_of(failure) != word.mode or bool(failure and word.mode and failure.blamed_message != word.blamed)


# Applying


@transaction.atomic
def apply(*, job: Reclassification, by: Any) -> bool:
    """False where it is not (or no longer) ready. The changes are made by a worker, a chunk at a time."""
    ready = Reclassification.objects.filter(pk=job.pk, state=State.READY)
    afresh = {"looked": 0, "after": None, "total": job.changes.count(), "touched_at": timezone.now()}
    if not ready.update(state=State.APPLIED, ended_at=None, **afresh):
        return False
    audit("reclassification.applied", project=job.project, by=by, target=job, changes=changing(job).count())
    transaction.on_commit(lambda: _send(job.pk))
    return True


@transaction.atomic
def discard(*, job: Reclassification, by: Any) -> bool:
    """Also one that still runs. False where it is past that."""
    here = Reclassification.objects.filter(pk=job.pk, state__in=[State.RUNNING, State.READY])
    if not here.update(state=State.DISCARDED, ended_at=timezone.now()):
        return False
    dropped, _ = ReclassificationChange.objects.filter(reclassification=job).delete()
    audit("reclassification.discarded", project=job.project, by=by, target=job, changes=dropped)
    return True


def _apply_chunk(job: Reclassification) -> bool:
    rows = job.changes.order_by("trajectory_id")
    rows = rows if job.after is None else rows.filter(trajectory_id__gt=job.after)
    chunk = list(rows[:CHUNK])
    if not chunk:
        _advance(job, ended_at=timezone.now())
        return False
    with transaction.atomic():
        if not _advance(job, after=chunk[-1].trajectory_id, looked=F("looked") + len(chunk)):
            return False
        _make(job.project, chunk)
    ids = [change.trajectory_id for change in chunk]
    store.place(job.project, list(Failure.objects.filter(trajectory_id__in=ids, cluster=None)))
    return True


def _make(project: Project, chunk: list[ReclassificationChange]) -> None:
    """Makes the changes whose diagnosis still is what the diff says; of decided ones only the rules' word is noted."""
    modes = ensure_modes(project)
    rows = Failure.objects.filter(trajectory_id__in=[change.trajectory_id for change in chunk])
    locked = rows.select_for_update(of=("self",)).select_related("mode").order_by("trajectory_id")
    failures = {failure.trajectory_id: failure for failure in locked}
    made, changed, gone = [], [], []
    for change in chunk:
        failure = failures.get(change.trajectory_id)
        if not _is_open(failure):
            Failure.objects.filter(pk=failure.pk).update(rule_mode=change.after)
        elif word_of(failure) != change.before or change.after not in {"", *modes}:
            continue  # classified again since, or the mode is gone
        elif not change.after:
            gone.append(failure)
        else:
            row = failure or Failure(project=project, trajectory_id=change.trajectory_id)
            row.mode, row.rule_mode = modes[change.after], rules_mode(change.evidence)
            row.source = source_of(change.evidence)
            row.blamed_message, row.evidence, row.cluster = change.blamed_message, change.evidence, None
            (changed if failure else made).append(row)
    # A second mode, split off by a person, is a word of theirs that stays.
    Failure.objects.filter(pk__in=[failure.pk for failure in gone if failure], also=None).delete()
    Failure.objects.bulk_update(changed, ["mode", "rule_mode", "source", "blamed_message", "evidence", "cluster"])
    Failure.objects.bulk_create(made, ignore_conflicts=True)


# Reading


def changing(job: Reclassification) -> models.QuerySet[ReclassificationChange]:
    """The changes of undecided diagnoses: those that applying makes, or made."""
    rows = ReclassificationChange.objects.filter(reclassification=job)
    return rows.filter(OF_OPEN).select_related("trajectory")


def matrix(job: Reclassification) -> list[dict[str, Any]]:
    """[{before, after, n}], the most frequent first. The same mode twice: only the blamed step moved."""
    rows = changing(job).order_by().values("before", "after").annotate(n=Count("pk"))
    return list(rows.order_by("-n", "before", "after"))


def of_people(job: Reclassification) -> dict[str, int]:
    """{decided: by people, among what was looked at, agree, disagree: with the rules of today}"""
    decided = Failure.objects.filter(project=job.project, source=Source.PERSON).exclude(state=FailureState.OPEN)
    if job.state == State.RUNNING:
        decided = decided.filter(trajectory_id__lte=job.after) if job.after else decided.none()
    n = decided.count()
    against = ReclassificationChange.objects.filter(OF_PEOPLE, reclassification=job).exclude(before=F("after")).count()
    return {"decided": n, "agree": max(0, n - against), "disagree": against}
