"""Actions of notifications: notify people of an event, mark notifications as read, and change
settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from apps.core.bus import Question, ask
from apps.core.models import Membership, Project, Role
from apps.notifications.catalogue import RULES, Topic
from apps.notifications.models import Mail, Notification, Preference
from apps.webhooks.actions import announce
from apps.webhooks.models import Event
from workers.lib.storable import storable

DIGEST_AFTER = timedelta(minutes=2)  # what happens meanwhile goes into the same mail
KEPT = timedelta(days=90)


class WithheldExcerpts(Question[Collection[str]]):
    """Those of these keys of notifications whose excerpts may no longer be quoted."""

    keys: Collection[str]


def notify(
    *,
    topic: Topic,
    project: Project,
    subject: str,
    page: str,
    key: str,
    to: Iterable[Any] | None = None,
    by: Any = None,
    excerpt: str = "",
    role: Role | None = None,
) -> int:
    """Notifies people of an event, in the caller's transaction. `to`: users; None is every member
    whose role is notified.

    Nobody is notified of their own action (`by`), nor anybody who is not a member, has too low a
    role (`role`, or else the topic's), or wants neither channel. `excerpt` must not contain
    held-out content. A `key` is notified once per person. Returns the number of people notified.
    """
    role = role or RULES[topic].role
    members = Membership.objects.filter(project=project, user__is_active=True, role__in=role.upward)
    if to is not None:
        members = members.filter(user__in={user.pk for user in to if user is not None})
    if by is not None:
        members = members.exclude(user=by)
    people = list(members.values_list("user_id", flat=True))
    wanted = choices(people, topic)
    now = timezone.now()
    rows = [
        Notification(
            project=project,
            user_id=pk,
            topic=topic,
            role=role,
            subject=_line(subject, 300),
            excerpt=_line(excerpt, 500),
            page=page,
            actor=by,
            key=key,
            in_app=in_app,
            mail=Mail.WAITING if by_mail else Mail.NONE,
            mail_due_at=now + DIGEST_AFTER if by_mail else None,
        )
        for pk, (in_app, by_mail) in wanted.items()
        if in_app or by_mail
    ]
    Notification.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def tell_of_override(*, project: Project, by: Any, subject: str, page: str, key: str) -> None:
    """An owner used their right to override the gate or the review: notifies the other owners and
    the webhooks.
    """
    subject = f"{subject} by {by}"
    notify(topic=Topic.OVERRIDE, project=project, subject=subject, page=page, key=key, by=by)
    announce(
        project=project,
        event=Event.OVERRIDE_USED,
        subject=subject,
        data={"by": by.get_username(), "page": page},
    )


def _line(text: str, most: int) -> str:
    """One line of limited length, without what an email's header or a database refuses."""
    text = " ".join(storable(text, "").split())
    return text if len(text) <= most else text[: most - 1] + "…"


def choices(people: Iterable[int], topic: Topic) -> dict[int, tuple[bool, bool]]:
    """{user's id: (in the app, by email)}. Without a mail server nothing waits for one."""
    rule, mail = RULES[topic], settings.FLYWHEEL_MAIL
    found = dict.fromkeys(people, (rule.in_app, rule.by_mail and mail))
    for row in Preference.objects.filter(user__in=found, topic=topic):
        found[row.user_id] = (row.in_app, row.by_mail and mail)
    return found


def mark_read(rows: QuerySet[Notification]) -> int:
    return rows.filter(read_at=None).update(read_at=Now())


def change_excerpt(key: str, excerpt: str) -> None:
    """What was notified about was edited."""
    Notification.objects.filter(key=key).exclude(excerpt="").update(excerpt=_line(excerpt, 500))


def retract(keys: Iterable[str]) -> None:
    """What was notified about was deleted: it is no longer quoted anywhere, and no email about it
    is sent.
    """
    rows = Notification.objects.filter(key__in=list(keys))
    rows.filter(mail=Mail.WAITING).update(mail=Mail.DROPPED)
    rows.update(excerpt="")


@transaction.atomic
def choose(*, user: Any, wanted: Mapping[str, tuple[bool, bool]]) -> None:
    """{topic: (in the app, by email)}. What is the same as the rule has no row, so that a better
    rule reaches everybody.
    """
    Preference.objects.filter(user=user, topic__in=wanted).delete()
    Preference.objects.bulk_create(
        Preference(user=user, topic=topic, in_app=in_app, by_mail=by_mail)
        for topic, (in_app, by_mail) in wanted.items()
        if (in_app, by_mail) != (RULES[Topic(topic)].in_app, RULES[Topic(topic)].by_mail)
    )


def withdraw_excerpts(rows: Iterable[Notification]) -> None:
    """Before they are shown or sent: what was quoted and has become part of a hold-out since is
    quoted no more, for good.
    """
    shown = [row for row in rows if row.excerpt]
    gone = set().union(*ask(WithheldExcerpts({row.key for row in shown})))
    if gone:
        Notification.objects.filter(key__in=gone).update(excerpt="")
    for row in shown:
        if row.key in gone:
            row.excerpt = ""


def forget_old() -> int:
    """Notifications older than 90 days, except those whose mail is still on its way."""
    old = Notification.objects.exclude(mail=Mail.WAITING).filter(created_at__lt=Now() - KEPT)
    return old.delete()[0]
