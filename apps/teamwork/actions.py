"""Actions on comments. The caller checks who may see an object."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import audit
from apps.core.bus import on
from apps.core.errors import Rejected
from apps.core.models import Project
from apps.notifications.actions import WithheldExcerpts, change_excerpt, notify, retract
from apps.notifications.catalogue import Topic
from apps.teamwork.models import LONGEST, Assignment, Comment
from apps.teamwork.targets import Kind, Unknown, kind_of, kinds
from apps.teamwork.text import mentioned
from apps.webhooks.actions import announce
from apps.webhooks.models import Event
from workers.lib.storable import storable

MOST = 2000  # comments on one object


class CommentError(Rejected):
    """A sentence for the page."""


def readers_of(kind: Kind, target: Any, project: Project) -> QuerySet[Any]:
    """The people who may open an object, and so can be mentioned."""
    roles = kind.role(target).upward
    return get_user_model().objects.filter(
        is_active=True, memberships__project=project, memberships__role__in=roles
    )


def cleaned(text: str) -> str:
    """Raises CommentError."""
    text = storable(text.replace("\r\n", "\n"), "").strip()
    if not any(
        unicodedata.category(letter)[0] not in "CZ" for letter in text
    ):  # nothing that can be seen
        raise CommentError("Enter a comment first.", "text")
    if len(text) > LONGEST:
        raise CommentError(
            f"A comment has at most {LONGEST:,} characters; this one has {len(text):,}.", "text"
        )
    return text


@transaction.atomic
def add_comment(*, project: Project, kind: Kind, target: Any, text: str, by: Any) -> Comment:
    """Notifies people mentioned, the object's owner, and earlier commenters. Raises
    CommentError.
    """
    text = cleaned(text)
    if Comment.objects.filter(project=project).about(target).count() >= MOST:
        raise CommentError(f"The limit of {MOST:,} comments has been reached.")
    row = Comment.objects.create(
        project=project,
        target_type=target._meta.label_lower,
        target_id=str(target.pk),
        by=by,
        text=text,
    )
    _mention(row, kind, target)
    commented = (
        Comment.objects.filter(project=project, deleted_at=None).about(target).exclude(by=None)
    )
    followers = get_user_model().objects.filter(pk__in=commented.values("by"))
    title, page = kind.title(target), page_of_comment(row)
    notify(
        topic=Topic.COMMENT,
        project=project,
        to=[*followers, *kind.owners(target)],
        by=by,
        page=page,
        key=key_of(row),
        subject=f"{by} commented on {title}",
        excerpt=_excerpt(row, kind, target),
        role=kind.role(target),
    )
    announce(
        project=project,
        event=Event.COMMENT_ADDED,
        subject=f"{by} commented on {title}",
        data={
            "comment": {
                "id": str(row.pk),
                "on": f"{kind.name}:{target.pk}",
                "by": by.get_username(),
            },
            "page": page,
        },
    )
    audit(
        "comment.added", project=project, by=by, target=target, what=kind.noun, comment=str(row.pk)
    )
    return row


def _mention(row: Comment, kind: Kind, target: Any) -> None:
    """Before others are notified, so that a person who is mentioned is notified of the mention."""
    people = {user.get_username(): user for user in readers_of(kind, target, row.project)}
    found = [people[name] for name in mentioned(row.text, people)]
    row.mentions.set(found)
    notify(
        topic=Topic.MENTION,
        project=row.project,
        to=found,
        by=row.by,
        page=page_of_comment(row),
        key=key_of(row),
        subject=f"{row.by} mentioned you in a comment on {kind.title(target)}",
        excerpt=_excerpt(row, kind, target),
        role=kind.role(target),
    )


@on(WithheldExcerpts)
def withheld(question: WithheldExcerpts) -> set[str]:
    """Comments that may not be quoted now: a hold-out may have been made of their object since."""
    ids = [key.removeprefix("comment:") for key in question.keys if key.startswith("comment:")]
    found: dict[tuple[str, str], list[Comment]] = {}
    for row in Comment.objects.filter(pk__in=ids).select_related("project"):
        found.setdefault((row.target_type, row.target_id), []).append(row)
    gone = set()
    for (label, pk), rows in found.items():
        kind = kind_of(label)
        try:
            quotable = kind.may_be_quoted(kind.find(rows[0].project, pk))
        except Unknown:
            quotable = False
        if not quotable:
            gone |= {key_of(row) for row in rows}
    return gone


def _excerpt(row: Comment, kind: Kind, target: Any) -> str:
    return row.text if kind.may_be_quoted(target) else ""


def key_of(row: Comment) -> str:
    return f"comment:{row.pk}"


def page_of_comment(row: Comment) -> str:
    return reverse("teamwork:comment", args=[row.project.slug, row.pk])


@transaction.atomic
def edit_comment(*, comment: Comment, kind: Kind, target: Any, text: str, by: Any) -> Comment:
    """One's own, while it is not deleted. Tells who is newly mentioned. Raises CommentError."""
    text = cleaned(text)
    if not _own(comment, by).update(text=text, edited_at=timezone.now()):
        raise CommentError("This comment has been deleted, or is not yours.")
    comment.refresh_from_db()
    change_excerpt(key_of(comment), _excerpt(comment, kind, target))
    _mention(comment, kind, target)
    audit(
        "comment.edited",
        project=comment.project,
        by=by,
        target=target,
        what=kind.noun,
        comment=str(comment.pk),
    )
    return comment


@transaction.atomic
def delete_comment(*, comment: Comment, kind: Kind, target: Any, by: Any) -> bool:
    """False if it was deleted before, or is not theirs."""
    deleted = bool(_own(comment, by).update(text="", deleted_at=Now()))
    if deleted:
        comment.mentions.clear()
        retract([key_of(comment)])
        audit(
            "comment.deleted",
            project=comment.project,
            by=by,
            target=target,
            what=kind.noun,
            comment=str(comment.pk),
        )
    return deleted


def _own(comment: Comment, by: Any) -> QuerySet[Comment]:
    return Comment.objects.filter(pk=comment.pk, by=by, deleted_at=None)


def record_read(kind: Kind, target: Any, *, by: Any) -> None:
    """Reading the comments on an object is a view of it; without any, nothing is shown."""
    if Comment.objects.filter(deleted_at=None).about(target).exists():
        kind.record_view(target, by)


def forget_orphans(project: Project | None = None) -> int:
    """Deletes comments on deleted objects, of all projects or one: they may quote them."""
    of = {} if project is None else {"project": project}
    gone = 0
    for kind in kinds():
        for model in (Comment, Assignment):
            rows = model.objects.filter(target_type=kind.model._meta.label_lower, **of)
            ids = list(rows.order_by().values_list("target_id", flat=True).distinct())
            for some in _chunks(ids, 1000):
                there = {
                    str(pk)
                    for pk in kind.model._default_manager.filter(pk__in=some).values_list(
                        "pk", flat=True
                    )
                }
                orphans = rows.filter(target_id__in=set(some) - there)
                if model is Comment:
                    retract(f"comment:{pk}" for pk in orphans.values_list("pk", flat=True))
                gone += orphans.delete()[1].get(model._meta.label, 0)
    return gone


def _chunks(found: list[str], size: int) -> Iterable[list[str]]:
    return (found[at : at + size] for at in range(0, len(found), size))
