"""Operators are sent what is wrong, and when it is over: by mail, and by a webhook of theirs
(FLYWHEEL_OPERATOR_MAIL, FLYWHEEL_OPERATOR_WEBHOOK). Neither needs the database or the broker.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from apps.core.watching import undelivered
from apps.core.watching.conditions import (
    Button,
    Condition,
    Finding,
    Lane,
    NoAnswer,
    Severity,
    ask,
    condition,
    named,
)
from workers.lib.outgoing import RefusedAddress, client

log = logging.getLogger(__name__)
WAIT_S = 5.0
EVENT = "operator.alert"
OPERATOR = "/operator/"


@dataclass(frozen=True)
class Alert:
    """`ended_at`: it is over."""

    condition: Condition
    about: str
    says: str
    since: datetime
    page: str = ""
    ended_at: datetime | None = None

    @property
    def subject(self) -> str:
        state = "Over" if self.ended_at else self.condition.severity.capitalize()
        return f"{state}: {self.condition.title}" + (f" ({self.about})" if self.about else "")

    @property
    def text(self) -> str:
        lines = [self.says, f"Since {self.since:%Y-%m-%d %H:%M:%S} UTC."]
        if self.ended_at:
            lines = [f"From {self.since:%F %T} to {self.ended_at:%F %T} UTC it was: {self.says}"]
        else:
            lines += [f"What to do: {self.condition.todo}"]
            if button := self.condition.button:
                lines += [f"Button: “{button.label}” on {settings.FLYWHEEL_URL}{OPERATOR}"]
        lines += [settings.FLYWHEEL_URL + (self.page or OPERATOR)]
        return "\n".join(lines)


class NotSent(Exception):
    """Why, as a sentence or an error's text."""


def send(alerts: Sequence[Alert]) -> bool:
    """True where there is nobody to send them to, or somebody was sent them."""
    if not alerts:
        return True
    for alert in alerts:
        log.warning("%s. %s", alert.subject, alert.says)
    tried = _sent(alerts)
    return not tried or not all(tried.values())


def _sent(alerts: Sequence[Alert]) -> dict[str, str]:
    """{way: why it failed, "" where they were sent}, of the ways by which somebody is reached."""
    tried = {}
    if settings.FLYWHEEL_MAIL and (addresses := _addresses()):
        tried["mail"] = _why_not(lambda: _by_mail(alerts, addresses))
    if settings.FLYWHEEL_OPERATOR_WEBHOOK:
        tried["webhook"] = _why_not(lambda: _by_webhook(alerts))
    undelivered.note(tried)
    for way, why in tried.items():
        if why:
            log.warning("An alert could not be sent by %s: %s", way, why)
    return tried


def _why_not(send_one: Callable[[], None]) -> str:
    try:
        send_one()
    except (NotSent, httpx2.HTTPError, RefusedAddress, OSError, ValueError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def try_out() -> str:
    """Sends a test by each way, and says what came of it."""
    about = named("alerts_undelivered")
    assert about is not None
    says = "This is a test, sent by hand. Nothing is wrong."
    tried = _sent([Alert(about, "test", says, timezone.now())])
    if not tried:
        return (
            "Nobody is alerted: set EMAIL_HOST and FLYWHEEL_OPERATOR_MAIL, or"
            " FLYWHEEL_OPERATOR_WEBHOOK."
        )
    return " ".join(
        f"Not sent by {way}: {why}." if why else f"Sent by {way}." for way, why in tried.items()
    )


def _addresses() -> list[str]:
    """Those that are set; else those of superusers, where the database answers."""
    if settings.FLYWHEEL_OPERATOR_MAIL:
        return settings.FLYWHEEL_OPERATOR_MAIL
    users = get_user_model().objects.filter(is_superuser=True, is_active=True).exclude(email="")
    try:
        return ask(Lane.DATABASE, lambda: list(users.values_list("email", flat=True)))
    except (NoAnswer, DatabaseError, InterfaceError):
        return []


def _by_mail(alerts: Sequence[Alert], addresses: list[str]) -> None:
    subject = alerts[0].subject if len(alerts) == 1 else f"{len(alerts)} conditions"
    text = "\n\n".join(f"{alert.subject}\n{alert.text}" for alert in alerts)
    headers = {"Auto-Submitted": "auto-generated"}
    mail = EmailMessage(f"[Flywheel] {subject}"[:200], text, None, addresses, headers=headers)
    if not mail.send():
        raise NotSent("the mail server took it for nobody")


def _by_webhook(alerts: Sequence[Alert]) -> None:
    """In the form of Standard Webhooks (unsigned: the address is the secret), with `text`, which
    Slack and Mattermost read.
    """
    body = json.dumps(
        {
            "type": EVENT,
            "text": "\n".join(f"{alert.subject}. {alert.says}" for alert in alerts),
            "data": [_data(alert) for alert in alerts],
        }
    )
    headers = {
        "Content-Type": "application/json",
        "webhook-id": f"msg_{uuid.uuid4().hex}",
        "webhook-timestamp": str(int(time.time())),
    }
    with client(allow_private=True, timeout=WAIT_S) as http:
        answer = http.post(
            settings.FLYWHEEL_OPERATOR_WEBHOOK, content=body.encode(), headers=headers
        )
    if not answer.is_success:
        raise NotSent(f"it answered {answer.status_code}")


def _data(alert: Alert) -> dict[str, Any]:
    return {
        "condition": alert.condition.name,
        "severity": alert.condition.severity.value,
        "title": alert.condition.title,
        "about": alert.about,
        "says": alert.says,
        "todo": alert.condition.todo,
        "since": alert.since.isoformat(),
        "ended_at": alert.ended_at.isoformat() if alert.ended_at else None,
        "url": settings.FLYWHEEL_URL + (alert.page or "/operator/"),
    }


@condition(
    "alerts_undelivered",
    "Operators are not reached",
    todo="Mend the setting that the sentence names (docs/settings.md), start again, and send a"
    " test: with the button, or “manage.py doctor --send-test”.",
    lane=Lane.MACHINE,
    severity=Severity.WARNING,
    for_operators=True,
    button=Button("Send a test alert", lambda about, by: try_out()),
)
def not_reached() -> Iterator[Finding]:
    for way, (since, why) in undelivered.ways().items():
        yield Finding(f"The last alert could not be sent by {way}: {why}.", way, since)
