"""Episodes that callers have open: their state lies in the database, since any web process may
answer the next call.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from apps.core.models import Project
from apps.environments.models import Environment, EnvironmentSession
from apps.environments.protocol.bodies import Refusal

COOKIE, HEADER = "flywheel_environment_session", "X-Flywheel-Session"
LOCK_WAIT = "30s"
UNKNOWN = (
    "This session is unknown or has expired. Call seed_session with the task's row first, and send"
    " back its cookie"
)
KEPT_S, MAX_KEPT = 60.0, 1000
MAX_OPEN = 20_000  # of one environment: a caller that never closes must not fill the disk

_kept: dict[tuple[int, str, int], tuple[float, Environment]] = {}


def token_of(request: HttpRequest) -> str:
    """What the caller sent of a session; "" without one."""
    return request.headers.get(HEADER, "") or request.COOKIES.get(COOKIE, "")


def digest(environment: Environment, token: str) -> str:
    return hashlib.sha256(f"{environment.pk}:{token}".encode()).hexdigest()


def start(environment: Environment, task: dict, name: str = "") -> str:
    """A new session's token. With a `name` of the caller's own, the same name again is the same
    session.

    Raises Refusal if too many are open.
    """
    token = name or secrets.token_urlsafe(32)
    hashed = digest(environment, token)
    if EnvironmentSession.objects.filter(environment=environment)[MAX_OPEN - 1 : MAX_OPEN].exists():
        raise Refusal(
            429, f"{MAX_OPEN} sessions of this environment are open. Close those that are done."
        )
    fields = {"environment": environment, "task": task, "expires_at": expiry()}
    with brief():
        if name:
            EnvironmentSession.objects.filter(
                token_hash=hashed, expires_at__lte=timezone.now()
            ).delete()
            EnvironmentSession.objects.get_or_create(token_hash=hashed, defaults=fields)
        else:
            EnvironmentSession.objects.create(token_hash=hashed, **fields)
    return token


def expiry() -> datetime:
    return timezone.now() + timedelta(seconds=settings.FLYWHEEL_ENVIRONMENT_SESSION_S)


@contextmanager
def locked(environment: Environment, token: str) -> Iterator[EnvironmentSession]:
    """The session, for this caller alone: calls of one session run one after the other.

    Its state, calls and expiry are stored at the end. Raises Refusal: 400 for no such session, 409
    for one in use.
    """
    with brief():
        session = _open(environment, token).select_for_update().first() if token else None
        if session is None:
            raise Refusal(400, f"{UNKNOWN} (or the header {HEADER}).")
        yield session
        session.expires_at = expiry()
        session.save(update_fields=["state", "calls", "expires_at"])


def found(environment: Environment, token: str) -> EnvironmentSession | None:
    """The current session; None if it does not exist or has expired."""
    return _open(environment, token).first() if token else None


def _open(environment: Environment, token: str) -> QuerySet[EnvironmentSession]:
    return EnvironmentSession.objects.filter(
        token_hash=digest(environment, token), expires_at__gt=timezone.now()
    )


@contextmanager
def brief() -> Iterator[None]:
    """A transaction whose commit does not wait for the disk: a session lost in a crash is seeded
    again.

    Raises Refusal (409) if another call holds the session for LOCK_WAIT.
    """
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SET LOCAL synchronous_commit TO off; SET LOCAL lock_timeout TO '{LOCK_WAIT}'"
                )
            yield
    except OperationalError as error:
        if "lock timeout" in str(error):
            raise Refusal(
                409, f"Another call of this session has been running for {LOCK_WAIT}. Try again."
            ) from error
        raise


def close(environment: Environment, token: str) -> None:
    """Also if there is none. Raises Refusal (409) for one in use."""
    if token:
        with brief():
            EnvironmentSession.objects.filter(token_hash=digest(environment, token)).delete()


def forget_expired() -> int:
    """Rows removed."""
    return EnvironmentSession.objects.filter(expires_at__lte=timezone.now()).delete()[0]


def of_project(project: Project, slug: str, version: int) -> Environment:
    """Kept for KEPT_S in this process, since a version never changes. Raises Refusal (404)."""
    name = (project.pk, slug, version)
    until, environment = _kept.get(name, (0.0, None))
    if environment is None or until < time.monotonic():
        rows = Environment.objects.select_related("verifier", "project")
        environment = rows.filter(project=project, slug=slug, version=version).first()
        if environment is None:
            _kept.pop(name, None)
            raise Refusal(
                404,
                f"The key's project has no {slug}@{version}. GET /api/v1/environments/ lists what"
                " it has.",
            )
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[name] = time.monotonic() + KEPT_S, environment
    return environment
