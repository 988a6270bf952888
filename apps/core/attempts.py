"""Failed log-ins and refused API keys: counted for each account and network, and slowed down.

The counts are rows, so that all web processes share them. An attempt is counted before the password
is looked at, and taken back when it was right: of many at the same moment no more get through than
of many in a row. What is locked is refused before anything is counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import F, Q
from django.http import HttpRequest
from django.utils import timezone

from apps.core.models import ApiKey, Attempts, AuditEvent, Membership

FORGOTTEN_AFTER = timedelta(days=1)
KNOWN_FOR = timedelta(days=180)
UNKNOWN = "(unknown user)"  # what was typed may be a password
WITH_PORT = re.compile(r"\[([^\]]*)\](?::\d+)?|([\d.]+):\d+", re.ASCII)
KNOWN_BROWSER = "\0known browser"  # no form takes a name with this character


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
    Attempts.Kind.HERE: Limit(5, HALF_A_MINUTE, timedelta(minutes=15)),
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
    """The address a request comes from."""
    given = request.META.get("HTTP_X_FORWARDED_FOR", ""), request.META.get("REMOTE_ADDR", "")
    return address_behind(*given)


def address_behind(forwarded: str, remote: str) -> str:
    """Behind FLYWHEEL_PROXIES proxies, as seen by the outermost of them. `forwarded`: the header
    X-Forwarded-For.
    """
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    trusted = settings.FLYWHEEL_PROXIES
    return hops[-trusted] if 0 < trusted <= len(hops) else remote


def network_of(address: str) -> str:
    """What one visitor has: an IPv4 address, or a /64 of IPv6. Some proxies append the port, which
    is another one for each connection.
    """
    found = WITH_PORT.fullmatch(address)
    bare = (found[1] or found[2]) if found else address
    try:
        parsed = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if mapped := parsed.ipv4_mapped:
        return str(mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


@dataclass(frozen=True)
class Counted:
    """What attempts are counted for. `account`: whose unlocking forgets it."""

    kind: Attempts.Kind
    name: str
    label: str = ""
    account: str = ""


def begin(*counted: Counted) -> list[Attempts]:
    """Counts an attempt for each. Raises Locked, and counts nothing, if one of them is locked.

    An address counts each account once: only if the same attempt is the first to count for the
    account there.
    """
    now = timezone.now()
    with transaction.atomic():
        rows = [_row(one, now) for one in sorted(counted, key=lambda one: one.kind)]
        locks = [row.locked_until for row in rows if row.locked_until and row.locked_until > now]
        if locks:
            raise Locked(max(locks))
        for row in rows:
            if row.last_at < now - FORGOTTEN_AFTER:
                row.failures = 0
        has_failed_here = any(row.kind == Attempts.Kind.HERE and row.failures for row in rows)
        for row in rows:
            if row.kind == Attempts.Kind.ADDRESS and has_failed_here and row.failures:
                continue
            row.failures += 1
            lock = LIMITS[Attempts.Kind(row.kind)].lock(row.failures)
            row.last_at, row.locked_until, row.was_counted = now, now + lock if lock else None, True
            row.save()
    return rows


def _row(counted: Counted, now: datetime) -> Attempts:
    key = {"kind": counted.kind, "digest": _digest(counted.name)}
    account = _digest(counted.account) if counted.account else ""
    fields = {"last_at": now, "label": counted.label, "account": account}
    Attempts.objects.get_or_create(**key, defaults=fields)
    return Attempts.objects.select_for_update().get(**key)


def _digest(name: str) -> str:
    """As written: of an account's name that is the account's own spelling. Folding case would give
    two accounts one count (straße, strasse).
    """
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()


def locks_of(names: list[str]) -> dict[str, datetime]:
    """{name: until when} of the accounts that are locked now, anywhere."""
    digests = {_digest(name): name for name in names}
    rows = Attempts.objects.locked().filter(account__in=digests)
    return {digests[row.account]: row.locked_until for row in rows.order_by("locked_until")}


def unlock_account(name: str) -> bool:
    """Forgets its failures everywhere, whatever the case of the letters. False if there were
    none.
    """
    spelled = get_user_model().objects.filter(username__iexact=name)
    digests = {*map(_digest, (name, *spelled.values_list("username", flat=True)))}
    failed = Attempts.objects.filter(account__in=digests).exclude(kind=Attempts.Kind.KNOWN)
    return bool(failed.delete()[0])


def unlock_address(address: str) -> bool:
    """Forgets its failures and its refused keys. False if there were none."""
    kinds = (Attempts.Kind.ADDRESS, Attempts.Kind.KEYS)
    digest = _digest(network_of(address))
    return bool(Attempts.objects.filter(kind__in=kinds, digest=digest).delete()[0])


def forget_old() -> int:
    now, is_known = timezone.now(), Q(kind=Attempts.Kind.KNOWN)
    old = Q(last_at__lt=now - FORGOTTEN_AFTER) & ~is_known | Q(last_at__lt=now - KNOWN_FOR)
    return Attempts.objects.filter(old).delete()[0]


# Log-ins


def remember_network(username: str, address: str) -> None:
    """Somebody has logged in to the account there."""
    name = f"{network_of(address)} {username}"
    Attempts.objects.update_or_create(
        kind=Attempts.Kind.KNOWN,
        digest=_digest(name),
        defaults={"last_at": timezone.now(), "account": _digest(username)},
    )


class LogIn:
    """One attempt to log in: `begin`, then `failed` or `succeeded`. Where nothing names an account,
    `username` is empty.

    Failures are counted for the account at its network (HERE); for the account at all networks at
    which nobody has logged in to it (ACCOUNT), so whoever guesses from many of them locks them all,
    and nobody who is where they were before; and for the network (ADDRESS), where each account
    counts once, since an office has one address. A browser that has logged in to the account before
    (`is_known`) is only held up by its own failures.
    """

    def __init__(self, username: str, address: str, *, is_known: bool = False) -> None:
        self.username, self.address, self.is_known = username, address, is_known
        self.network = network_of(address)
        self.rows: list[Attempts] = []

    def begin(self) -> None:
        """Raises Locked."""
        self.rows = begin(*self._counted())

    def _counted(self) -> Iterator[Counted]:
        name, kinds = self.username, Attempts.Kind
        if name:
            known = KNOWN_BROWSER if self.is_known else ""
            yield Counted(kinds.HERE, f"{self.network} {name}{known}", account=name)
        if name and not self.is_known and not self._is_known_network():
            yield Counted(kinds.ACCOUNT, name, account=name)
        if not self.is_known:
            yield Counted(kinds.ADDRESS, self.network, self.network)

    def _is_known_network(self) -> bool:
        return Attempts.objects.filter(
            kind=Attempts.Kind.KNOWN,
            digest=_digest(f"{self.network} {self.username}"),
            last_at__gte=timezone.now() - KNOWN_FOR,
        ).exists()

    def succeeded(self, *, whole: bool = True) -> None:
        """`whole` is False for a right password that a second factor has to follow: only this
        attempt is taken back, or the password would wipe out the wrong codes that came before it.
        """
        of_account = [row.pk for row in self.rows if row.account]
        if whole:
            Attempts.objects.filter(pk__in=of_account).delete()
        taken_back = [
            row.pk
            for row in self.rows
            if row.was_counted or (whole and row.kind == Attempts.Kind.ADDRESS)
        ]
        rows = Attempts.objects.filter(pk__in=taken_back, failures__gt=0)
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
        if locked and user:
            labels = {Attempts.Kind.ACCOUNT: "", Attempts.Kind.HERE: f" at {self.network}"}
            for kind, where in labels.items():
                rows = Attempts.objects.filter(pk__in=[row.pk for row in self.rows], kind=kind)
                rows.update(label=f"{self.username[:150]}{where}")
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
    network = network_of(address)
    [row] = begin(Counted(Attempts.Kind.KEYS, network, f"API keys from {network}"))
    if row.failures > 1 and row.locked_until is None:
        return
    revoked = ApiKey.objects.filter(digest=digest).first()
    AuditEvent.objects.create(
        project_id=revoked.project_id if revoked else None,
        actor_label=str(revoked) if revoked else "(unknown key)",
        action="api_key.refused",
        detail={"address": address, "refused": row.failures, **_until(row.locked_until)},
    )
