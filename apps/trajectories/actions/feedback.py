"""Writes of what people say of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.trajectories import merging, schema, tombstones
from apps.trajectories.actions import store
from apps.trajectories.models import Cause, Feedback, Score, Trajectory, TrajectoryKey
from apps.trajectories.rollups import Counts


class DeletedError(Exception):
    """Feedback on a deleted run."""


@transaction.atomic
def receive(*, project: Project, external_id: str, news: schema.Feedback) -> Trajectory | None:
    """Stores feedback once, and returns its run; None if that has not arrived yet: it will find its
    feedback here.

    Under an id that was used before, different feedback replaces the first. The same feedback
    without an id counts as given again now: the latest counts. Raises RowError, DeletedError.
    """
    said = merging.from_schema(news)
    said.project, said.external_id = project, external_id
    row = _locked(project, external_id)
    if row is None:
        merging.wait_for_arrivals(project)
        row = _locked(project, external_id)
    if row is None and (deleted := tombstones.deleted_runs(project, [external_id])):
        raise DeletedError(f"This run was deleted on {deleted[external_id]:%Y-%m-%d}.")
    kept, new = Feedback.objects.get_or_create(
        project=project,
        external_id=external_id,
        key=said.key,
        defaults={"outcome": said.outcome, "interventions": said.interventions},
    )
    if not new and (
        not news.id or (kept.outcome, kept.interventions) != (said.outcome, said.interventions)
    ):
        kept.outcome, kept.interventions, kept.given_at = (
            said.outcome,
            said.interventions,
            timezone.now(),
        )
        kept.save()
    return apply(row, cause=Cause.FEEDBACK) if row else None


@transaction.atomic
def give(*, trajectory: Trajectory, news: schema.Feedback, by: Any) -> Trajectory:
    """A person's feedback from the page of a run. Raises RowError, DeletedError."""
    news.by, news.id = by.get_username(), news.id or uuid4().hex
    status = news.outcome.status if news.outcome and isinstance(news.outcome.status, str) else ""
    audit(
        "trajectory.feedback", project=trajectory.project, by=by, target=trajectory, outcome=status
    )
    given = receive(project=trajectory.project, external_id=trajectory.external_id, news=news)
    return given or trajectory


def _locked(project: Project, external_id: str) -> Trajectory | None:
    """The run of a client's id; None also for one that was deleted while this waited for it."""
    row = store.find(project, external_id)
    return Trajectory.objects.select_for_update().filter(pk=row.pk).first() if row else None


def apply(row: Trajectory, *, cause: Cause) -> Trajectory:
    """Brings a run's columns up to what people say of it by now. Must run in a transaction."""
    row = Trajectory.objects.select_for_update().get(pk=row.pk)
    key = TrajectoryKey.objects.get(project=row.project_id, external_id=row.external_id)
    columns = {name: getattr(row, name) for name in store.SENT}
    store.apply_feedback(columns, key.digest, row.feedback)
    changed = {name: value for name, value in columns.items() if value != getattr(row, name)}
    if changed:
        counts = Counts()
        store.replace(row, changed, {}, counts, cause=cause)
        store.announce(row.project, [row.pk], counts)
    return row


def move(project: Project, names: Mapping[str, str]) -> None:
    """Moves the feedback on runs that turned out to be parts of others to those: {part: whole}."""
    for said in Feedback.objects.filter(project=project, external_id__in=names):
        whole = names[said.external_id]
        if Feedback.objects.filter(project=project, external_id=whole, key=said.key).exists():
            said.delete()
        else:
            said.external_id = whole
            said.save(update_fields=["external_id"])


def apply_to(project: Project, names: Iterable[str]) -> None:
    """Brings the runs of these names up to what people say of them. Must run in a transaction."""
    for name in names:
        if row := _locked(project, name):
            apply(row, cause=Cause.FEEDBACK)


def forget_unclaimed(project: Project, before: datetime) -> int:
    """Removes feedback and scores that have waited for their run since long ago. Returns how
    many.
    """
    scores = Score.objects.filter(project=project, trajectory_id=None, created_at__lt=before)
    waiting = Feedback.objects.filter(project=project, given_at__lt=before)
    known = TrajectoryKey.objects.filter(
        project=project, external_id__in=waiting.values("external_id")
    )
    left = waiting.exclude(external_id__in=known.values("external_id"))
    return left.delete()[0] + scores.delete()[0]
