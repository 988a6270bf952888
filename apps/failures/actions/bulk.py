"""Actions on many failures at once. Each is one undo step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.core.models import Project
from apps.failures.actions.decisions import (
    Refused,
    holder_of,
    locked,
    require_triager,
    snapshots,
    tell_of_assignment,
)
from apps.failures.judge.people import fix_sides
from apps.failures.models import Failure, FailureDecision, FailureMode, FailureState, Source

LIMIT = 5_000  # failures per bulk change


@dataclass(frozen=True)
class Change:
    """`n` were changed; `same` already were so, `locked` are open on someone else's screen: both
    were left alone.
    """

    did: str
    n: int
    same: int
    locked: int
    before: str = "unchanged"

    def __str__(self) -> str:
        left = (
            [f"{self.same:,} {'was' if self.same == 1 else 'were'} {self.before}"]
            if self.same
            else []
        )
        left += (
            [f"{self.locked:,} {'is' if self.locked == 1 else 'are'} open on someone else's screen"]
            if self.locked
            else []
        )
        many = f"{self.n:,} failure{'' if self.n == 1 else 's'}"
        return f"{self.did.format(many)}" + (f" Skipped: {', '.join(left)}." if left else "")


def decide_many(
    *,
    project: Project,
    ids: Iterable[int],
    by: Any,
    state: FailureState,
    mode: FailureMode | None = None,
) -> Change:
    """Confirms, dismisses, or confirms as another mode. Raises Refused."""
    if mode is not None and mode.project_id != project.pk:
        raise Refused("This failure mode belongs to another project.")

    def edit(failure: Failure) -> bool:
        if failure.state == state and mode in (None, failure.mode):
            return False
        failure.mode, failure.state, failure.source = mode or failure.mode, state, Source.PERSON
        failure.decided_by, failure.decided_at = by, timezone.now()
        return True

    did = (
        f"{{}} changed to “{mode}”."
        if mode
        else "{} confirmed."
        if state == FailureState.CONFIRMED
        else "{} dismissed."
    )
    return _change(project, ids, by, "decided", did, edit)


@transaction.atomic
def decide_alike(
    *,
    failure: Failure,
    others: Iterable[int],
    by: Any,
    state: FailureState,
    mode: FailureMode | None = None,
    seen: str | None = None,
) -> Change:
    """The same decision for a case (`seen` as in `decide`) and for other undecided ones. If
    confirmed, they get its mode.

    Raises Refused.
    """
    case = locked(failure, by, seen)
    if mode is not None and mode.project_id != case.project_id:
        raise Refused("This failure mode belongs to another project.")
    mode = mode or (case.mode if state == FailureState.CONFIRMED else None)

    def edit(row: Failure) -> bool:
        if row.pk != case.pk and row.state != FailureState.OPEN:
            return False
        row.mode, row.state, row.source = mode or row.mode, state, Source.PERSON
        row.decided_by, row.decided_at = by, timezone.now()
        return True

    did = f"{{}} confirmed as “{mode}”." if mode else "{} dismissed."
    return _change(
        case.project, [case.pk, *others], by, "decided", did, edit, before="already decided"
    )


@transaction.atomic
def assign_many(*, project: Project, ids: Iterable[int], by: Any, to: Any) -> Change:
    """Assigns them to a reviewer, or to nobody. Raises Refused."""
    require_triager(project, to)

    def edit(failure: Failure) -> bool:
        if failure.assigned_to_id == (to and to.pk):
            return False
        failure.assigned_to = to
        return True

    change = _change(
        project, ids, by, "assigned", f"{{}} assigned to {to}." if to else "{} unassigned.", edit
    )
    if to is not None and change.n:
        page = f"{reverse('failures:list', args=[project.slug])}?mine=1"
        tell_of_assignment(
            project, to, by, f"{change.n:,} failure{'' if change.n == 1 else 's'}", page
        )
    return change


FIELDS = ["mode", "state", "source", "decided_by", "decided_at", "assigned_to"]


@transaction.atomic
def _change(
    project: Project,
    ids: Iterable[int],
    by: Any,
    kind: str,
    did: str,
    edit: Callable[[Failure], bool],
    before: str = "unchanged",
) -> Change:
    """Undo returns to the first of `ids`."""
    wanted = _bounded(ids)
    rows = (
        Failure.objects.select_for_update(of=("self",))
        .prefetch_related("mode", "reserved_by")
        .order_by("pk")
    )
    found = list(rows.filter(project=project, pk__in=wanted))
    free = [row for row in found if holder_of(row, by) is None]
    was = snapshots(free)
    changed = [row for row in free if edit(row)]
    _drop_second(changed)
    Failure.objects.bulk_update(changed, FIELDS, batch_size=1000)
    place = {pk: number for number, pk in enumerate(wanted)}
    changed.sort(key=lambda row: -place[row.pk])
    after, batch = snapshots(changed), {"kind": kind, "bulk": uuid.uuid4().hex}
    fix_sides(project, [row.trajectory_id for row in changed])
    FailureDecision.objects.bulk_create(
        [
            FailureDecision(failure=row, by=by, before=was[row.pk], after=after[row.pk] | batch)
            for row in changed
        ],
        batch_size=1000,
    )
    change = Change(did, len(changed), len(free) - len(changed), len(found) - len(free), before)
    audit(
        f"failures.{kind}", project=project, by=by, n=change.n, did=str(change), bulk=batch["bulk"]
    )
    return change


def _drop_second(changed: list[Failure]) -> None:
    """A mode that is now a failure's main mode is removed as its second mode."""
    links = Failure.also.through.objects.filter(failure_id__in=[row.pk for row in changed])
    mode_of = {row.pk: row.mode_id for row in changed}
    double = [
        pk
        for pk, failure, mode in links.values_list("pk", "failure_id", "failuremode_id")
        if mode_of[failure] == mode
    ]
    Failure.also.through.objects.filter(pk__in=double).delete()


def _bounded(ids: Iterable[int]) -> list[int]:
    found = list(dict.fromkeys(ids))
    if not found:
        raise Refused("No failures selected.")
    if len(found) > LIMIT:
        raise Refused(f"At most {LIMIT:,} failures at a time.")
    return found
