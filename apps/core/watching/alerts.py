"""Operators are sent what is wrong, and when it is over: by mail, and by a webhook of theirs
(FLYWHEEL_OPERATOR_MAIL, FLYWHEEL_OPERATOR_WEBHOOK). Neither needs the database or the broker.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.db import DatabaseError, InterfaceError

from apps.core.watching.conditions import Condition, Lane, NoAnswer, ask
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
            lines[1:] = [f"From {self.since:%F %T} to {self.ended_at:%F %T} UTC."]
        else:
            lines += [f"What to do: {self.condition.todo}"]
            if button := self.condition.button:
                lines += [f"Button: “{button.label}” on {settings.FLYWHEEL_URL}{OPERATOR}"]
        lines += [settings.FLYWHEEL_URL + (self.page or OPERATOR)]
        return "\n".join(lines)


def send(alerts: Sequence[Alert]) -> bool:
    """True where there is nobody to send them to, or somebody was sent them."""
    if not alerts:
        return True
    sent = [
        send_one(alerts)
        for send_one, is_set in (
            (_by_mail, settings.FLYWHEEL_MAIL),
            (_by_webhook, bool(settings.FLYWHEEL_OPERATOR_WEBHOOK)),
        )
        if is_set
    ]
    for alert in alerts:
        log.warning("%s. %s", alert.subject, alert.says)
    return not sent or any(sent)


def _addresses() -> list[str]:
    """Those that are set; else those of superusers, where the database answers."""
    if settings.FLYWHEEL_OPERATOR_MAIL:
        return settings.FLYWHEEL_OPERATOR_MAIL
    users = get_user_model().objects.filter(is_superuser=True, is_active=True).exclude(email="")
    try:
        return ask(Lane.DATABASE, lambda: list(users.values_list("email", flat=True)))
    except (NoAnswer, DatabaseError, InterfaceError):
        return []


def _by_mail(alerts: Sequence[Alert]) -> bool:
    addresses = _addresses()
    if not addresses:
        return True
    subject = alerts[0].subject if len(alerts) == 1 else f"{len(alerts)} conditions"
    text = "\n\n".join(f"{alert.subject}\n{alert.text}" for alert in alerts)
    headers = {"Auto-Submitted": "auto-generated"}
    mail = EmailMessage(f"[Flywheel] {subject}"[:200], text, None, addresses, headers=headers)
    try:
        return bool(mail.send())
    except (OSError, ValueError) as error:
        log.warning("An alert could not be mailed: %s", error)
        return False


def _by_webhook(alerts: Sequence[Alert]) -> bool:
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
    try:
        with client(allow_private=True, timeout=WAIT_S) as http:
            answer = http.post(
                settings.FLYWHEEL_OPERATOR_WEBHOOK, content=body.encode(), headers=headers
            )
        return answer.is_success
    except (httpx2.HTTPError, RefusedAddress, OSError) as error:
        log.warning("An alert could not be sent to the operators' webhook: %s", error)
        return False


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
