"""The assignees of an object. Only people who may act on it can be assigned, and whoever no longer
may is unassigned.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.db.models import QuerySet

from apps.core.actions import MemberChanged, audit
from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.models import Membership, Project
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.teamwork.models import Assignment
from apps.teamwork.targets import Kind, kinds


class AssignmentError(Rejected):
    field = "user"


def workers_of(kind: Kind, project: Project) -> QuerySet[Any]:
    """The people whom an object of this kind may be given to."""
    assert kind.worker, f"{kind.name} is not assigned"
    rows = get_user_model().objects.filter(
        is_active=True, memberships__project=project, memberships__role__in=kind.worker.upward
    )
    return rows.order_by("username")


def assignees(target: Any) -> QuerySet[Any]:
    rows = Assignment.objects.about(target)
    return (
        get_user_model()
        .objects.filter(pk__in=rows.values("user"), is_active=True)
        .order_by("username")
    )


def assigned_to(user: Any, model: type[models.Model]) -> list[Any]:
    """The ids of what this person was given of one kind: for the filter “mine”."""
    rows = Assignment.objects.filter(user=user, target_type=model._meta.label_lower)
    pk: Any = model._meta.pk
    return [pk.to_python(found) for found in rows.values_list("target_id", flat=True)]


@transaction.atomic
def assign(*, project: Project, kind: Kind, target: Any, to: Any, by: Any, on: bool = True) -> bool:
    """Assigns it to somebody, or takes it back (`on` is False). True if that changed something.
    Raises AssignmentError, and PermissionDenied if `by` may not act on it themselves."""
    assert kind.worker
    if not Membership.objects.filter(
        project=project, user=by, role__in=kind.worker.upward
    ).exists():
        raise PermissionDenied(f"This requires the {kind.worker.label} role.")
    rows = Assignment.objects.filter(project=project, user=to).about(target)
    if not on:
        changed = bool(rows.delete()[0])
    elif not workers_of(kind, project).filter(pk=to.pk).exists():
        raise AssignmentError(
            f"{to} cannot be assigned this: it requires the {kind.worker.label} role in {project}."
        )
    else:
        _, changed = Assignment.objects.get_or_create(
            project=project,
            target_type=target._meta.label_lower,
            target_id=str(target.pk),
            user=to,
            defaults={"by": by},
        )
    if changed:
        audit(
            "assignment.made" if on else "assignment.ended",
            project=project,
            by=by,
            target=target,
            user=to.get_username(),
            what=kind.noun,
        )
    if changed and on:
        made = rows.get()
        topic = Topic.REVIEW_ASKED if kind.name == "review" else Topic.ASSIGNED
        said = (
            f"{by} asks you to judge {kind.title(target)}"
            if kind.name == "review"
            else f"{by} assigned you {kind.title(target)}"
        )
        notify(
            topic=topic,
            project=project,
            to=[to],
            by=by,
            page=target.get_absolute_url(),
            key=f"assignment:{made.pk}",
            subject=said,
            role=kind.worker,
        )
    return changed


@on(MemberChanged)
def unassign(event: MemberChanged) -> None:
    """Who was removed, or is below the role that a kind takes, has none of it any more."""
    project, user = event.project, event.user
    held = event.role.rank if event.role else -1
    lost = [
        kind.model._meta.label_lower for kind in kinds() if kind.worker and kind.worker.rank > held
    ]
    rows = Assignment.objects.filter(project=project, user=user, target_type__in=lost)
    n = rows.delete()[0]
    if n:
        audit("assignments.ended", project=project, by=event.by, user=user.get_username(), n=n)
