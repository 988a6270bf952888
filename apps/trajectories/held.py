"""What waits until Presidio has looked for people and places in it (`names`): encrypted, and on no
page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.fernet import InvalidToken
from django.db import transaction
from django.db.models import Count, Min, Q
from django.utils import timezone

from apps.core.actions import audit
from apps.core.encryption import each_row, fernet, reencrypts
from apps.core.models import Project
from apps.core.waking import Waker
from apps.trajectories import contents
from apps.trajectories.models import HeldBatch
from apps.trajectories.redaction import RuleError

HELD = "flywheel.held"
TASK, EXPIRES_S = "trajectories.look_for_names", 30

_wake = Waker(TASK, expires_s=EXPIRES_S, every_s=1.0)


def hold(project: Project, kind: HeldBatch.Kind, parts: Iterable[bytes]) -> None:
    """Keeps them for `names.step`. Durable when it returns."""
    sealing = fernet(HELD)
    HeldBatch.objects.bulk_create(
        HeldBatch(project=project, kind=kind, data=sealing.encrypt(contents.compress(part)))
        for part in parts
    )
    transaction.on_commit(_wake)


def unsealed(batch: HeldBatch) -> bytes:
    """Raises RuleError without its key."""
    try:
        return contents.decompress(fernet(HELD).decrypt(bytes(batch.data)))
    except InvalidToken as error:
        raise RuleError(
            "It was encrypted with an earlier SECRET_KEY: add that to SECRET_KEY_FALLBACKS."
        ) from error


@reencrypts("batches that wait for Presidio")
def _reencrypt() -> tuple[int, int]:
    return each_row(
        HeldBatch.objects.all(), lambda row: {"data": fernet(HELD).rotate(bytes(row.data))}
    )


@dataclass(frozen=True)
class Waiting:
    """What a project's page says: `set_aside` could not be stored and waits for a person."""

    waiting: int
    since: datetime | None
    problem: str
    set_aside: int
    reason: str


def waiting_of(project: Project) -> Waiting:
    rows = HeldBatch.objects.filter(project=project)
    found = rows.aggregate(
        waiting=Count("pk", filter=Q(due_at__isnull=False)),
        since=Min("received_at", filter=Q(due_at__isnull=False)),
        set_aside=Count("pk", filter=Q(due_at__isnull=True)),
    )
    said = rows.exclude(problem="").order_by("pk")
    problem, reason = (
        said.filter(due_at__isnull=is_aside).values_list("problem", flat=True).first()
        for is_aside in (False, True)
    )
    return Waiting(**found, problem=problem or "", reason=reason or "")


@transaction.atomic
def retry(*, project: Project, by: Any) -> int:
    """Lets what was set aside be tried again. Returns how many."""
    n = HeldBatch.objects.filter(project=project, due_at=None).update(
        due_at=timezone.now(), problem=""
    )
    if n:
        audit("held.retried", project=project, by=by, n=n)
        transaction.on_commit(_wake)
    return n


@transaction.atomic
def discard(*, project: Project, by: Any) -> int:
    """Deletes what was set aside. Returns how many."""
    n = HeldBatch.objects.filter(project=project, due_at=None).delete()[0]
    if n:
        audit("held.discarded", project=project, by=by, n=n)
    return n
