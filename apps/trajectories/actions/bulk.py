"""What a person changes in many trajectories at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.trajectories import merging
from apps.trajectories.actions import deletions, store
from apps.trajectories.models import BulkChange, Cause, Feedback, Outcome, Trajectory, TrajectoryKey
from apps.trajectories.rollups import Counts

LIMIT = 5_000  # trajectories of one change
KEPT = timedelta(days=30)  # that a change can be taken back
MAX_TAG = 80


class BulkError(Exception):
    """A change that makes no sense; the message is for the person."""


def tag(*, project: Project, ids: Iterable[UUID], tag: str, by: Any) -> BulkChange:
    """Raises BulkError."""
    name = _tag(tag)
    return _change(
        project,
        ids,
        by,
        BulkChange(kind="tag", value=name),
        lambda row: _tags(row, name, True),
        lambda row: "",
    )


def untag(*, project: Project, ids: Iterable[UUID], tag: str, by: Any) -> BulkChange:
    """Raises BulkError."""
    name = _tag(tag)
    return _change(
        project,
        ids,
        by,
        BulkChange(kind="untag", value=name),
        lambda row: _tags(row, name, False),
        lambda row: "",
    )


def set_outcome(*, project: Project, ids: Iterable[UUID], outcome: str, by: Any) -> BulkChange:
    """The status only; reward, label and reason stay as the agent sent them. Raises BulkError."""
    if outcome not in Outcome.values:
        raise BulkError("Choose an outcome.")
    change = BulkChange(kind="outcome", value=str(outcome))
    return _change(
        project, ids, by, change, lambda row: _outcome(row, outcome), lambda row: row.outcome_status
    )


@transaction.atomic
def delete(*, project: Project, ids: Iterable[UUID], by: Any) -> int:
    rows = list(project.trajectories.filter(pk__in=_bounded(ids)).order_by("pk"))
    n = deletions.purge(project, rows)
    if n:
        audit(
            "trajectories.deleted",
            project=project,
            by=by,
            n=n,
            first=[row.external_id for row in rows[:10]],
        )
    return n


@transaction.atomic
def undo(*, project: Project, change: BulkChange, by: Any) -> int:
    """Restores what nobody has changed since. Returns the number of rows; 0 if it was already
    undone.
    """
    if not BulkChange.objects.filter(pk=change.pk, project=project, undone_at=None).update(
        undone_at=timezone.now()
    ):
        return 0
    if change.kind == "outcome":
        back = {UUID(pk): before for before, ids in change.was.items() for pk in ids}
        edit = lambda row: (  # noqa: E731
            _outcome(row, back[row.pk]) if row.outcome_status == change.value else None
        )
    else:
        back = {UUID(pk): "" for ids in change.was.values() for pk in ids}
        edit = lambda row: _tags(row, change.value, change.kind == "untag")  # noqa: E731
    n = sum(1 for _ in _edited(project, list(back), edit, change, undo=True))
    audit("trajectories.undone", project=project, by=by, kind=change.kind, value=change.value, n=n)
    return n


@transaction.atomic
def _change(
    project: Project,
    ids: Iterable[UUID],
    by: Any,
    change: BulkChange,
    edit: Callable[[Trajectory], dict | None],
    before: Callable[[Trajectory], str],
) -> BulkChange:
    def noted(row: Trajectory) -> dict | None:
        was = before(row)
        if columns := edit(row):
            change.was.setdefault(was, []).append(row.pk.hex)
        return columns

    change.project, change.by = project, by
    change.save()
    change.n = sum(1 for _ in _edited(project, _bounded(ids), noted, change))
    if change.n:
        change.save()
    else:
        change.delete()
    audit(f"trajectories.{change.kind}", project=project, by=by, value=change.value, n=change.n)
    return change


def forget_changes() -> int:
    """Removes what changes remember of long ago. Returns how many."""
    return BulkChange.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]


def _edited(
    project: Project,
    ids: list[UUID],
    edit: Callable[[Trajectory], dict | None],
    change: BulkChange,
    undo: bool = False,
) -> Iterable[Trajectory]:
    """The rows whose columns `edit` contains, changed: with feedback, history, terms and
    roll-ups.
    """
    counts, touched, given = Counts(), [], []
    key = f"bulk:{change.pk}"
    rows = list(project.trajectories.filter(pk__in=ids).select_for_update().order_by("pk"))
    keys = TrajectoryKey.objects.filter(
        project=project, external_id__in=[row.external_id for row in rows]
    )
    digests = dict(keys.values_list("external_id", "digest"))
    said = Feedback.objects.about(project.pk, digests)
    for row in rows:
        if columns := edit(row):
            own = [item for item in said[row.external_id] if item.key != key]
            if not undo:
                own.append(_feedback(row, change, key))
                given.append(own[-1])
            columns["terms"] = store.terms(
                {name: getattr(row, name) for name in store.SENT} | columns
            )
            columns["content_digest"] = merging.digest_of(digests[row.external_id], own)
            store.replace(row, columns, {}, counts, cause=Cause.EDITED)
            touched.append(row)
            yield row
    if undo:
        Feedback.objects.filter(
            project=project, key=key, external_id__in=[row.external_id for row in touched]
        ).delete()
    Feedback.objects.bulk_create(given)
    store.announce(project, [row.pk for row in touched], counts)


def _feedback(row: Trajectory, change: BulkChange, key: str) -> Feedback:
    """A change as a person's feedback on the run: a later copy of the run does not undo it."""
    said = Feedback(project_id=row.project_id, external_id=row.external_id, key=key)
    if change.kind == "outcome":
        said.outcome = {"status": change.value}
    else:
        said.tags = {change.value: change.kind == "tag"}
    return said


def _tags(row: Trajectory, name: str, wanted: bool) -> dict | None:
    if (name in row.tags) == wanted:
        return None
    return {"tags": [*row.tags, name] if wanted else [tag for tag in row.tags if tag != name]}


def _outcome(row: Trajectory, outcome: str) -> dict | None:
    return None if row.outcome_status == outcome else {"outcome_status": outcome}


def _tag(name: str) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= MAX_TAG:
        raise BulkError(f"Tags must have 1 to {MAX_TAG} characters.")
    return name


def _bounded(ids: Iterable[UUID]) -> list[UUID]:
    found = list(dict.fromkeys(ids))
    if len(found) > LIMIT:
        raise BulkError(f"At most {LIMIT:,} trajectories at a time.")
    return found
