"""Failed log-ins and refused API keys: counted for each account and address, and slowed down.

The counts are rows, so that all web processes share them. An attempt is counted before the password
is looked at, and taken back when it was right: of many at the same moment no more get through than
of many in a row.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import F
from django.http import HttpRequest
from django.utils import timezone

from apps.core.models import ApiKey, Attempts, AuditEvent, Membership

FORGOTTEN_AFTER = timedelta(days=1)
UNKNOWN = "(unknown user)"  # what was typed may be a password


@dataclass(frozen=True)
class Limit:
    """The first `free` failures cost nothing; each one after that locks for `first`, then twice as
    long each time, up to `longest`.
    """

    free: int
    first: timedelta
    longest: timedelta

    def lock(self, failures: int) -> timedelta | None:
        beyond = failures - self.free
        return min(self.longest, self.first * 2 ** min(beyond, 20)) if beyond >= 0 else None


HALF_A_MINUTE, HOUR = timedelta(seconds=30), timedelta(hours=1)
LIMITS = {
    Attempts.Kind.ACCOUNT: Limit(5, HALF_A_MINUTE, timedelta(minutes=15)),
    Attempts.Kind.ADDRESS: Limit(20, HALF_A_MINUTE, HOUR),
    Attempts.Kind.KEYS: Limit(100, HALF_A_MINUTE, HOUR),
}


class Locked(Exception):
    """Too many attempts have failed; `seconds` until the next may be made."""

    def __init__(self, until: datetime) -> None:
        self.seconds = max(1, round((until - timezone.now()).total_seconds()))
        wait = (
            f"{self.seconds} seconds"
            if self.seconds < 100
            else f"{round(self.seconds / 60)} minutes"
        )
        super().__init__(f"Too many attempts have failed. Try again in {wait}.")


def address_of(request: HttpRequest) -> str:
    """The address a request comes from: behind FLYWHEEL_PROXIES proxies, as seen by the outermost
    of them.
    """
    hops = [
        hop.strip()
        for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
        if hop.strip()
    ]
    trusted = settings.FLYWHEEL_PROXIES
    return hops[-trusted] if 0 < trusted <= len(hops) else request.META.get("REMOTE_ADDR", "")


def begin(kind: Attempts.Kind, name: str) -> Attempts:
    """Counts an attempt. Raises Locked, and counts nothing, if none may be made now."""
    now = timezone.now()
    with transaction.atomic():
        digest = _digest(name)
        Attempts.objects.get_or_create(kind=kind, digest=digest, defaults={"last_at": now})
        row = Attempts.objects.select_for_update().get(kind=kind, digest=digest)
        if row.locked_until and row.locked_until > now:
            raise Locked(row.locked_until)
        row.failures = 1 if row.last_at < now - FORGOTTEN_AFTER else row.failures + 1
        lock = LIMITS[kind].lock(row.failures)
        row.last_at, row.locked_until = now, now + lock if lock else None
        row.save()
    return row


def _digest(name: str) -> str:
    return hashlib.sha256(name.casefold().encode("utf-8", "replace")).hexdigest()


def locks_of(names: list[str]) -> dict[str, datetime]:
    """{name: until when} of the accounts that are locked now."""
    digests = {_digest(name): name for name in names}
    rows = Attempts.objects.filter(
        kind=Attempts.Kind.ACCOUNT, digest__in=digests, locked_until__gt=timezone.now()
    )
    return {digests[row.digest]: row.locked_until for row in rows}


def unlock(kind: Attempts.Kind, name: str) -> bool:
    """Forgets the failures. False if there were none."""
    return bool(Attempts.objects.filter(kind=kind, digest=_digest(name)).delete()[0])


def forget_old() -> int:
    return Attempts.objects.filter(last_at__lt=timezone.now() - FORGOTTEN_AFTER).delete()[0]


# Log-ins


class LogIn:
    """One attempt to log in: `begin`, then `failed` or `succeeded`. Where nothing names an account,
    `username` is empty.

    An office has one address. So an address is locked for trying many accounts, each of which
    counts once; whoever tries one account many times locks that account. A browser that has logged
    in to the account before (`is_known`) is not held up by its address.
    """

    def __init__(self, username: str, address: str, *, is_known: bool = False) -> None:
        self.username, self.address, self.is_known = username, address, is_known
        self.rows: list[Attempts] = []

    def begin(self) -> None:
        """Raises Locked."""
        if not self.is_known:
            self.rows.append(self._begin_address())
        if self.username:
            self.rows.append(begin(Attempts.Kind.ACCOUNT, self.username))

    def _begin_address(self) -> Attempts:
        if not (self.username and self._has_failed_here):
            row = begin(Attempts.Kind.ADDRESS, self.address)
            if self.username:
                begin(Attempts.Kind.ADDRESS, self._account_here)
            return row
        digest = _digest(self.address)
        row = Attempts.objects.get(kind=Attempts.Kind.ADDRESS, digest=digest)
        if row.locked_until and row.locked_until > timezone.now():
            raise Locked(row.locked_until)
        return row

    @property
    def _account_here(self) -> str:
        return f"{self.address} {self.username}"

    @property
    def _has_failed_here(self) -> bool:
        """Whether this account's failure at this address is counted in the address's."""
        digests = {_digest(self._account_here), _digest(self.address)}
        recent = Attempts.objects.filter(
            kind=Attempts.Kind.ADDRESS,
            digest__in=digests,
            last_at__gte=timezone.now() - FORGOTTEN_AFTER,
        )
        return recent.count() == len(digests)

    def succeeded(self, *, whole: bool = True) -> None:
        """`whole` is False for a right password that a second factor has to follow: only this
        attempt is taken back, or the password would wipe out the wrong codes that came before it.
        """
        if whole:
            unlock(Attempts.Kind.ACCOUNT, self.username)
        unlock(Attempts.Kind.ADDRESS, self._account_here)
        rows = Attempts.objects.filter(pk__in=[row.pk for row in self.rows], failures__gt=0)
        rows.update(failures=F("failures") - 1, locked_until=None)

    def refused(self) -> None:
        """What is known to have failed already; once the address is locked, nothing more is
        written.
        """
        with contextlib.suppress(Locked):
            self.begin()
            self.failed()

    def failed(self) -> None:
        """Into the audit log of the account's projects. What is locked is refused unseen, so the
        lines are few.
        """
        user = (
            get_user_model().objects.filter(username=self.username).first()
            if self.username
            else None
        )
        locked = max((row.locked_until for row in self.rows if row.locked_until), default=None)
        _note("login.locked" if locked else "login.failed", user, self.address, **_until(locked))


def _until(locked: datetime | None) -> dict[str, str]:
    return {"until": locked.isoformat(timespec="seconds")} if locked else {}


def note(action: str, user: Any, request: HttpRequest, **detail: Any) -> None:
    """Into the audit log of all projects of the user."""
    _note(action, user, address_of(request), **detail)


def _note(action: str, user: Any, address: str, **detail: Any) -> None:
    now = timezone.now()  # the same in all of them: to the person it is one event
    projects = (
        list(Membership.objects.filter(user=user).values_list("project_id", flat=True))
        if user
        else []
    )
    AuditEvent.objects.bulk_create(
        AuditEvent(
            project_id=project,
            actor=user,
            actor_label=user.get_username() if user else UNKNOWN,
            action=action,
            detail={"address": address, **detail},
            at=now,
        )
        for project in projects or [None]
    )


# Keys


def refuse_key(digest: str, address: str) -> None:
    """Counts a refused key; the first and each that locks is recorded in the audit log, of its
    project if it was revoked. Raises Locked if too many came from the address: then nothing more is
    written."""
    row = begin(Attempts.Kind.KEYS, address)
    if row.failures > 1 and row.locked_until is None:
        return
    revoked = ApiKey.objects.filter(digest=digest).first()
    AuditEvent.objects.create(
        project_id=revoked.project_id if revoked else None,
        actor_label=str(revoked) if revoked else "(unknown key)",
        action="api_key.refused",
        detail={"address": address, "refused": row.failures, **_until(row.locked_until)},
    )
