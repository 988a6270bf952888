"""Scoring answers to held-out tasks by API: only with keys that may, a limited number per day, each
counted as a view.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from apps.core import locks
from apps.core.bus import on
from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.environments.protocol.bodies import Refusal
from apps.environments.protocol.guards import Use, UsingTask
from apps.evals.canonical import canonical_hash
from apps.evals.holdout import leaks
from apps.evals.holdout.view_log import record_membership, record_seen
from apps.evals.models import HoldoutView, Task

DAY = timedelta(days=1)
MOST_TEXTS = 200
NEEDS_THE_RIGHT = (
    "This is a held-out task or a near-duplicate of one. Use an API key with access to hold-outs"
    " (an operator can create one under Settings → API keys), or tasks of the validation split."
)


@on(UsingTask)
def guard(event: UsingTask) -> None:
    """Raises Refusal: 403 if the key may not see hold-outs, 429 if the day's scores are used up."""
    key = event.key
    held = held_out_like(key.project, event.task)
    if not held:
        return
    if not key.sees_holdout:
        record_membership(
            key.project, held, by=key, detail="a task sent to an environment or grader"
        )
        raise Refusal(403, NEEDS_THE_RIGHT)
    tasks = Task.objects.filter(canonical_hash__in=held)
    if event.use is Use.OPEN:
        record_seen(key.project, tasks, by=key, detail="opened in an environment")
        return
    with transaction.atomic():
        # two concurrent requests must not both get the last one
        locks.acquire_in(key.project_id, ProjectLock.HOLDOUT_SCORES)
        if scores_today(key.project) >= settings.FLYWHEEL_HOLDOUT_SCORES_A_DAY:
            raise Refusal(
                429,
                f"{settings.FLYWHEEL_HOLDOUT_SCORES_A_DAY} answers to held-out tasks of this"
                " project were scored through the API in the last 24 hours, which is the limit"
                " (FLYWHEEL_HOLDOUT_SCORES_A_DAY). Score tasks of another split, evaluate in"
                " Flywheel, or wait.",
            )
        record_seen(
            key.project,
            tasks,
            by=key,
            detail="scored by API",
            kind=HoldoutView.Kind.SCORE,
            each_time=True,
        )


def scores_today(project: Project) -> int:
    since = timezone.now() - DAY
    return HoldoutView.objects.filter(
        project=project, kind=HoldoutView.Kind.SCORE, at__gt=since
    ).count()


def held_out_like(project: Project, row: dict) -> set[str]:
    """The canonical hashes of the held-out tasks that a row equals or resembles: as a whole, by a
    task or conversation inside it, or, if it has no messages, by one of its texts. A row without
    text resembles none."""
    held = Task.every.holdout().filter(project=project)
    if not held.exists():
        return set()
    rows = [
        *_rows(row),
        *({"messages": [{"role": "user", "content": text}]} for text in _texts(row)),
    ]
    hashes = [canonical_hash(one["messages"]) for one in rows if is_chat(one.get("messages"))]
    if same := set(held.filter(canonical_hash__in=hashes).values_list("canonical_hash", flat=True)):
        return same
    try:
        return {leak.theirs_hash for leak in leaks.of_rows(project, [("row", one) for one in rows])}
    except ValueError:
        return set()


def _rows(row: dict) -> list[dict]:
    """The row, and objects directly inside it that are rows themselves."""
    inner = (
        [item for item in row.values() if isinstance(item, dict)]
        if not is_chat(row.get("messages"))
        else []
    )
    return [row, *(item for item in inner if is_chat(item.get("messages")) or "expected" in item)]


def is_chat(messages: Any) -> bool:
    return isinstance(messages, list) and all(isinstance(message, dict) for message in messages)


def _texts(row: dict) -> list[str]:
    """The longest texts of a row in an unknown format: one of them may be the request."""
    if is_chat(row.get("messages")):
        return []
    found: list[str] = []
    level: list[Any] = [row]
    while level:
        found += [item for item in level if isinstance(item, str) and item.strip()]
        level = [
            inner for item in level if isinstance(item, dict | list) for inner in _inside(item)
        ]
    return sorted(set(found), key=len, reverse=True)[:MOST_TEXTS]


def _inside(item: dict | list) -> Any:
    return item.values() if isinstance(item, dict) else item
