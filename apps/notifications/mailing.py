"""Notifications by email: all that waits for a person goes in one mail.

A claim makes it due again after `LEASE`, and counts: a worker that dies between sending and storing
loses nothing, the same mail goes out once more under the same Message-ID. Who may see what is
looked at when it is sent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMultiAlternatives, get_connection
from django.db import transaction
from django.db.models import F, Min
from django.db.models.functions import Now
from django.template.loader import render_to_string
from django.urls import reverse

from apps.notifications.actions import withdraw_excerpts
from apps.notifications.models import Mail, Notification

log = logging.getLogger(__name__)
LEASE = timedelta(minutes=2)
TRIES = 6
FIRST_WAIT, FACTOR = timedelta(minutes=1), 4  # then 4, 16 minutes … about 6 hours in all
AT_ONCE = 50  # people in one round
MOST = 50  # notifications in one mail


def send_due() -> int:
    """One round: a mail to each of up to `AT_ONCE` people for whom something is due. Says how many
    were sent.
    """
    if not settings.FLYWHEEL_MAIL:
        return 0
    due = Notification.objects.filter(mail=Mail.WAITING, mail_due_at__lte=Now())
    people = due.values("user").annotate(first=Min("mail_due_at")).order_by("first")[:AT_ONCE]
    users = get_user_model().objects.in_bulk([row["user"] for row in people])
    return sum(send_to(user) for user in users.values())


def send_to(user: Any) -> bool:
    """False if another worker got there first, nothing may be sent, or the mail server refused."""
    claimed = _claim(user)
    shown = set(
        Notification.objects.filter(pk__in=claimed).visible_to(user).values_list("pk", flat=True)
    )
    going = list(Notification.objects.filter(pk__in=shown).select_related("project", "actor"))
    _settle([pk for pk in claimed if pk not in shown or not user.email], Mail.DROPPED)
    if not going or not user.email:
        return False
    withdraw_excerpts(going)
    try:
        mail_of(user, going).send()
    except (
        OSError,
        ValueError,
    ) as error:  # an address or a text that is none keeps nobody else's mail
        log.warning("Notifications of user %s could not be mailed: %s", user.pk, error)
        _again([row.pk for row in going])
        return False
    _settle([row.pk for row in going], Mail.SENT)
    return True


@transaction.atomic
def _claim(user: Any) -> list[Any]:
    rows = Notification.objects.filter(user=user).mailable()
    pks = list(
        rows.select_for_update(skip_locked=True)
        .order_by("created_at")
        .values_list("pk", flat=True)[:MOST]
    )
    Notification.objects.filter(pk__in=pks).update(
        mail_due_at=Now() + LEASE, mail_tries=F("mail_tries") + 1
    )
    return pks


def _settle(pks: Sequence[Any], state: Mail) -> None:
    Notification.objects.filter(pk__in=pks, mail=Mail.WAITING).update(mail=state)


def _again(pks: Sequence[Any]) -> None:
    """Each waits four times as long as the last time; one that was tried often enough has
    failed.
    """
    rows = Notification.objects.filter(pk__in=pks, mail=Mail.WAITING)
    rows.filter(mail_tries__gte=TRIES).update(mail=Mail.FAILED)
    for tries in range(1, TRIES):
        rows.filter(mail_tries=tries).update(mail_due_at=Now() + FIRST_WAIT * FACTOR ** (tries - 1))


def mail_of(user: Any, rows: Sequence[Notification]) -> EmailMultiAlternatives:
    context = {
        "user": user,
        "rows": rows,
        "url": settings.FLYWHEEL_URL,
        "settings": settings.FLYWHEEL_URL + reverse("notifications:preferences"),
    }
    first = rows[0]
    subject = (
        f"{first.project}: {first.subject}" if len(rows) == 1 else f"{len(rows)} notifications"
    )
    digest = hashlib.sha256(" ".join(sorted(str(row.pk) for row in rows)).encode()).hexdigest()[:32]
    host = settings.FLYWHEEL_URL.rpartition("//")[2].partition(":")[0]
    mail = EmailMultiAlternatives(
        f"[Flywheel] {subject}"[:200],
        render_to_string("notifications/mail.txt", context),
        None,
        [user.email],
        headers={"Message-ID": f"<{digest}@{host}>", "Auto-Submitted": "auto-generated"},
        connection=get_connection(),
    )
    mail.attach_alternative(render_to_string("notifications/mail.html", context), "text/html")
    return mail
