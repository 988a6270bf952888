"""Guessed passwords and keys, for operators, who undo a lock that hits the wrong people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apps.core.models import Attempts
from apps.core.watching.conditions import Button, Finding, Severity, condition

MOST = 20
NAME = "log_ins_guessed"


def _unlock(label: str, by: Any) -> str:
    """As an owner of a project can unlock an account (`attempts.unlock_account`)."""
    unlocked, _ = Attempts.objects.filter(label=label).exclude(label="").delete()
    return f"Unlocked {label}." if unlocked else f"{label} was not locked."


@condition(
    NAME,
    "Passwords or keys are being guessed",
    todo="People who have logged in from their network or browser before are not held up. Block the"
    " network at your proxy, or unlock it if these are your users.",
    severity=Severity.WARNING,
    for_operators=True,
    button=Button("Unlock", _unlock),
)
def guessed_log_ins() -> Iterator[Finding]:
    """Somebody who mistypes a password at one place is none; the page lists them."""
    rows = Attempts.objects.locked().exclude(kind=Attempts.Kind.HERE).exclude(label="")
    for row in rows.order_by("-failures", "pk")[:MOST]:
        yield Finding(
            f"{row.label} ({row.get_kind_display()}) is locked until"
            f" {row.locked_until:%Y-%m-%d %H:%M} UTC after {row.failures} failures.",
            row.label,
        )
