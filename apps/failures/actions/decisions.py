"""People's decisions on failures. Each decision is on its author's undo stack."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.actions import MemberChanged, audit
from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.models import Membership, Project, Role
from apps.failures.judge.people import fix_sides
from apps.failures.models import (
    RESERVED_FOR,
    Failure,
    FailureDecision,
    FailureMode,
    FailureState,
    Source,
)
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.trajectories.models import Trajectory

GONE = "This case no longer exists: the run is no longer classified as a failure."


class Refused(Rejected):
    """A change that cannot be made, at least not now. The message is for the person; nothing was
    changed.
    """


def version_of(failure: Failure) -> str:
    """Identifies what a page showed of a case: a decision is refused if the case has changed
    since.
    """
    decided = f"{failure.decided_at.timestamp():.6f}" if failure.decided_at else "never"
    return f"{failure.mode_id}.{failure.state}.{decided}"


def reserve(*, failure: Failure, by: Any) -> bool:
    """Reserves a case for the person for RESERVED_FOR. False if somebody else has reserved it."""
    now = timezone.now()
    free = (
        Q(reserved_until=None) | Q(reserved_until__lt=now) | Q(reserved_by=by) | Q(reserved_by=None)
    )
    rows = Failure.objects.filter(free, pk=failure.pk)
    return bool(rows.update(reserved_by=by, reserved_until=now + RESERVED_FOR))


def release(*, project: Project, by: Any, keep: tuple[int, ...] = ()) -> int:
    """Releases all cases reserved by the person except `keep`."""
    rows = Failure.objects.filter(project=project, reserved_by=by).exclude(pk__in=keep)
    return rows.update(reserved_by=None, reserved_until=None)


def holder_of(failure: Failure, user: Any) -> Any:
    """The other person who has the case open now; None if nobody has."""
    locked = (
        failure.reserved_by_id
        and failure.reserved_until
        and failure.reserved_until > timezone.now()
    )
    return (
        failure.reserved_by
        if locked and failure.reserved_by_id != getattr(user, "pk", None)
        else None
    )


@transaction.atomic
def decide(
    *,
    failure: Failure,
    by: Any,
    mode: FailureMode | None = None,
    state: FailureState = FailureState.CONFIRMED,
    seen: str | None = None,
) -> Failure:
    """A person's decision: confirm (as is, or as another mode) or dismiss. `seen` is the page's
    `version_of`.

    Raises Refused: somebody else has it open, it has changed, or the mode belongs to another
    project.
    """
    failure = locked(failure, by, seen)
    before = snapshot(failure)
    if mode is not None:
        failure.also.remove(_own(failure, mode))
    failure.mode, failure.state, failure.source = mode or failure.mode, state, Source.PERSON
    failure.decided_by, failure.decided_at = by, timezone.now()
    failure.reserved_by = failure.reserved_until = None
    failure.save(
        update_fields=[
            "mode",
            "state",
            "source",
            "decided_by",
            "decided_at",
            "reserved_by",
            "reserved_until",
        ]
    )
    return _remember(failure, by, before, "decided")


@transaction.atomic
def split(*, failure: Failure, by: Any, mode: FailureMode) -> Failure:
    """Gives the failure a second mode, or removes it again. Raises Refused."""
    failure = locked(failure, by)
    before = snapshot(failure)
    if _own(failure, mode).pk == failure.mode_id:
        raise Refused(f"“{mode}” is already its mode. Choose a different one to split off.")
    change = failure.also.remove if mode.slug in before["also"] else failure.also.add
    change(mode)
    return _remember(failure, by, before, "split")


@transaction.atomic
def blame(*, failure: Failure, by: Any, message: int) -> Failure:
    """Corrects the blamed step; the case stays as decided or open as it was, and no rule changes it
    again. Raises Refused.
    """
    _require_message(failure.trajectory, message)
    failure = locked(failure, by)
    before = snapshot(failure)
    failure.blamed_message, failure.source = message, Source.PERSON
    failure.save(update_fields=["blamed_message", "source"])
    return _remember(failure, by, before, "blamed")


def _require_message(trajectory: Trajectory, message: int) -> None:
    if not 0 <= message < trajectory.message_count:
        raise Refused(
            f"There is no message {message}: this run has {trajectory.message_count} messages,"
            " counted from 0."
        )


@transaction.atomic
def assign(*, failure: Failure, by: Any, to: Any) -> Failure:
    """Assigns the case to a reviewer, or to nobody (`to` is None). Raises Refused."""
    failure = locked(failure, by)
    before = snapshot(failure)
    require_triager(failure.project, to)
    failure.assigned_to = to
    failure.save(update_fields=["assigned_to"])
    row = _remember(failure, by, before, "assigned")
    if to is not None:
        tell_of_assignment(
            failure.project, to, by, f"a failure ({failure.mode})", failure.get_absolute_url()
        )
    return row


def tell_of_assignment(project: Project, to: Any, by: Any, what: str, page: str) -> None:
    notify(
        topic=Topic.ASSIGNED,
        project=project,
        to=[to],
        by=by,
        subject=f"{by} assigned you {what}",
        page=page,
        key=f"assigned:{page}:{timezone.now():%F %T}"[:160],
    )


@on(MemberChanged)
@transaction.atomic
def unassign_all(event: MemberChanged) -> None:
    """Unassigns the open cases of a person who was removed or may no longer triage."""
    project, user = event.project, event.user
    if event.role in Role.REVIEWER.upward:
        return
    release(project=project, by=user)
    rows = Failure.objects.filter(project=project, assigned_to=user).waiting()
    if n := rows.update(assigned_to=None):
        audit("failures.unassigned", project=project, by=event.by, user=user.get_username(), n=n)


@transaction.atomic
def mark_failure(
    *, trajectory: Trajectory, mode: FailureMode, blamed_message: int | None, by: Any
) -> Failure:
    """Mark a failure that no rule found, or that rules diagnosed differently; the person gives mode
    and step. Raises Refused.
    """
    if mode.project_id != trajectory.project_id:
        raise Refused("This failure mode belongs to another project.")
    if blamed_message is not None:
        _require_message(trajectory, blamed_message)
    failure, is_new = Failure.objects.get_or_create(
        trajectory=trajectory, defaults={"project_id": trajectory.project_id, "mode": mode}
    )
    failure = locked(failure, by)
    before = (
        {"created": True, "mode": "", "state": "", "source": ""} if is_new else snapshot(failure)
    )
    failure.mode, failure.state, failure.source = mode, FailureState.CONFIRMED, Source.PERSON
    failure.blamed_message, failure.decided_by, failure.decided_at = (
        blamed_message,
        by,
        timezone.now(),
    )
    failure.save(
        update_fields=["mode", "state", "source", "blamed_message", "decided_by", "decided_at"]
    )
    failure.also.remove(mode)
    return _remember(failure, by, before, "marked")


# By an answer to a check


CHECKED = {"kind": "checked"}  # no decision in triage: the answer is what counts


@transaction.atomic
def dismiss_checked(*, trajectory: Trajectory, by: Any) -> None:
    """Dismisses the open case of a run that went well according to a check."""
    rows = Failure.objects.select_for_update(of=("self",)).filter(trajectory=trajectory)
    failure = rows.waiting().first()
    if failure is None:
        return
    before = snapshot(failure)
    failure.state, failure.source = FailureState.DISMISSED, Source.PERSON
    failure.decided_by, failure.decided_at = by, timezone.now()
    failure.save(update_fields=["state", "source", "decided_by", "decided_at"])
    _remember(failure, by, before, CHECKED["kind"])


@transaction.atomic
def reopen_checked(*, trajectory: Trajectory, by: Any) -> None:
    """Takes back what the answer to a check did to the run's case, unless it was decided since."""
    rows = Failure.objects.select_for_update(of=("self",)).filter(trajectory=trajectory)
    failure = rows.first()
    done = FailureDecision.objects.filter(failure=failure, after__contains=CHECKED)
    row = done.order_by("-id").first() if failure else None
    if failure is None or row is None:
        return
    modes = {mode.slug: mode for mode in failure.project.failure_modes.all()}
    if _restored(failure, row, snapshot(failure), modes):
        failure.save(update_fields=RESTORED)
        audit("failure.reopened", project=failure.project, by=by, target=failure)
    done.delete()


# Undo


@dataclass(frozen=True)
class Undone:
    """`failure` is the case to show (None if the decision had created it); `kept` changed since and
    were left alone.
    """

    failure: Failure | None
    n: int
    kept: int


@transaction.atomic
def undo(*, project: Project, by: Any) -> Undone | None:
    """Undo the person's last change in the project, a bulk change as a whole. Returns None if there
    is none.

    Failures that somebody has changed since are left alone, and the next undo skips them.
    """
    rows = FailureDecision.objects.filter(failure__project=project, by=by).exclude(
        Q(after__has_key="kept") | Q(after__contains=CHECKED)
    )
    last = rows.order_by("-id").first()
    if last is None:
        return None
    batch = list(rows.filter(after__bulk=last.after["bulk"])) if "bulk" in last.after else [last]
    locked = (
        Failure.objects.select_for_update(of=("self",)).select_related("project").order_by("pk")
    )
    failures = {
        row.pk: row for row in locked.filter(pk__in=[decision.failure_id for decision in batch])
    }
    now = snapshots(list(failures.values()))
    modes = {mode.slug: mode for mode in project.failure_modes.all()}
    done = [
        row for row in batch if _restored(failures[row.failure_id], row, now[row.failure_id], modes)
    ]
    kept = [row for row in batch if row not in done]
    for row in kept:
        row.after["kept"] = True
    FailureDecision.objects.bulk_update(kept, ["after"])
    restored = [failures[row.failure_id] for row in done if "created" not in row.before]
    Failure.objects.bulk_update(restored, RESTORED, batch_size=1000)
    Failure.objects.filter(
        pk__in=[row.failure_id for row in done if "created" in row.before]
    ).delete()
    FailureDecision.objects.filter(pk__in=[row.pk for row in done]).delete()
    target = failures[last.failure_id] if len(batch) == 1 else None
    audit(
        "failure.undone",
        project=project,
        by=by,
        target=target,
        n=len(done),
        kept=len(kept),
        restored=last.before,
    )
    return Undone(
        restored[0] if restored else failures[kept[0].failure_id] if kept else None,
        len(done),
        len(kept),
    )


RESTORED = ["mode", "state", "source", "blamed_message", "assigned_to", "decided_by", "decided_at"]


def _restored(
    failure: Failure, row: FailureDecision, now: dict, modes: dict[str, FailureMode]
) -> bool:
    """Restore on `failure` what the decision changed. Returns False if any of it has changed
    since.
    """
    if "created" in row.before:
        return all(row.after[key] == now[key] for key in ("mode", "state", "decided_at", "also"))
    changed = [key for key, value in row.before.items() if value != row.after.get(key)]
    wanted = {*row.before["also"], row.before["mode"]}
    if any(now[key] != row.after[key] for key in changed) or not wanted <= modes.keys():
        return False
    if "also" in changed:
        failure.also.set([modes[slug] for slug in row.before["also"]])
    for key in changed:
        if key == "mode":
            failure.mode = modes[row.before["mode"]]
        elif key == "decided_at":
            failure.decided_at = row.before[key] and datetime.fromisoformat(row.before[key])
        elif key == "assigned_to":
            failure.assigned_to_id = (
                row.before[key] if is_triager(failure.project, row.before[key]) else None
            )
        elif key != "also":
            setattr(failure, {"decided_by": "decided_by_id"}.get(key, key), row.before[key])
    return True


# Shared with the bulk actions


def locked(failure: Failure, by: Any, seen: str | None = None) -> Failure:
    """The locked row, if this person may decide on it. Raises Refused.

    Rows that others may change meanwhile (its mode, who has it) are not joined: after waiting for
    the lock, PostgreSQL re-reads the locked row but not the joined ones, and drops the row if it no
    longer matches.
    """
    rows = Failure.objects.select_for_update(of=("self",))
    found = rows.select_related("project").filter(pk=failure.pk).first()
    if found is None:
        raise Refused(GONE)
    if other := holder_of(found, by):
        minutes = max(1, round((found.reserved_until - timezone.now()).total_seconds() / 60))
        raise Refused(
            f"{other} is reviewing this case for up to {minutes} more minutes. Nothing was changed."
        )
    if seen is not None and seen != version_of(found):
        raise Refused(_since(found))
    return found


def _since(failure: Failure) -> str:
    if failure.decided_at is None:
        return (
            f"This case has changed since you opened it: it is “{failure.mode}” now. Check again;"
            " nothing was changed."
        )
    return (
        f"{failure.decided_by or 'Somebody'} has decided this case since you opened it:"
        f" {failure.state} as “{failure.mode}”. Nothing was changed; decide again if you disagree."
    )


def _own(failure: Failure, mode: FailureMode) -> FailureMode:
    if mode.project_id != failure.project_id:
        raise Refused("This failure mode belongs to another project.")
    return mode


def require_triager(project: Project, to: Any) -> None:
    """Raises Refused if the person may not triage here."""
    if to is not None and not is_triager(project, to.pk):
        raise Refused(f"{to} cannot review failures in {project}: that requires the reviewer role.")


def is_triager(project: Project, pk: int | None) -> bool:
    return Membership.objects.filter(
        project=project, user=pk, role__in=Role.REVIEWER.upward
    ).exists()


def snapshot(failure: Failure) -> dict[str, Any]:
    return snapshots([failure])[failure.pk]


def snapshots(failures: list[Failure]) -> dict[int, dict[str, Any]]:
    """The fields that decisions change, of each failure, as JSON."""
    also: dict[int, list[str]] = {failure.pk: [] for failure in failures}
    links = Failure.also.through.objects.filter(failure_id__in=also).order_by("failuremode__slug")
    for pk, slug in links.values_list("failure_id", "failuremode__slug"):
        also[pk].append(slug)
    return {
        failure.pk: {
            "mode": failure.mode.slug,
            "state": str(failure.state),
            "source": str(failure.source),
            "also": also[failure.pk],
            "blamed_message": failure.blamed_message,
            "assigned_to": failure.assigned_to_id,
            "decided_by": failure.decided_by_id,
            "decided_at": failure.decided_at.isoformat() if failure.decided_at else None,
        }
        for failure in failures
    }


def _remember(failure: Failure, by: Any, before: dict, kind: str) -> Failure:
    after = snapshot(failure)
    fix_sides(failure.project, [failure.trajectory_id])
    FailureDecision.objects.create(
        failure=failure, by=by, before=before, after=after | {"kind": kind}
    )
    audit(
        f"failure.{kind}",
        project=failure.project,
        by=by,
        target=failure,
        before=before,
        after=after,
    )
    return failure
