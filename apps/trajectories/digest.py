"""What happens in the seconds after trajectories arrived: roll-ups, filter choices, full text. Each arrival once."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from celery import current_app
from django.db import connection, transaction
from kombu.exceptions import OperationalError as BrokerError

from apps.core import locks
from apps.core.locks import Lock
from apps.trajectories import contents, schema
from apps.trajectories.models import Arrival, Content, Facet, HourlyCount
from apps.trajectories.rollups import KIND, SUMS, Counts

log = logging.getLogger(__name__)
AT_ONCE = 40  # arrivals of one transaction
TEXT_LIMIT = 200_000  # characters of one trajectory that are indexed
FACETS_LIMIT = 2_000  # values of a kind in a project
TASK, EXPIRES_S = "trajectories.digest", 30
WAKE_EVERY_S = 1.0  # shorter than the task lingers: what arrives between two calls is seen

_waking = threading.Lock()
_woken_at = 0.0


def wake() -> None:
    """Sends the digest's task, at most once a second and process. Beat sends it too: a lost message loses nothing."""
    global _woken_at
    with _waking:
        now = time.monotonic()
        if now - _woken_at < WAKE_EVERY_S:
            return
        _woken_at = now
    try:
        current_app.send_task(TASK, retry=False, expires=EXPIRES_S)
    except (BrokerError, OSError) as error:
        log.warning("The digest waits for the broker: %s", error)


def run() -> int:
    """Digests what there is. Returns the number of arrivals."""
    done = 0
    while some := step():
        done += some
    return done


@transaction.atomic
def step() -> int:
    """One transaction's worth; 0 where nothing is left, or another digests it."""
    if not locks.try_acquire(Lock.DIGEST):  # one at a time: what is read last is what is written last
        return 0
    arrivals = list(Arrival.objects.order_by("pk")[:AT_ONCE])
    if not arrivals:
        return 0
    by_project: defaultdict[int, Counts] = defaultdict(Counts)
    touched: list[UUID] = []
    for arrival in arrivals:
        by_project[arrival.project_id].merge(arrival.counts)
        touched += arrival.trajectories
    for project, counts in sorted(by_project.items()):
        _add_hours(project, counts)
        _add_facets(project, counts)
    _index(list(dict.fromkeys(touched)))
    Arrival.objects.filter(pk__in=[arrival.pk for arrival in arrivals]).delete()
    return len(arrivals)


def _add_hours(project: int, counts: Counts) -> None:
    table, key = HourlyCount._meta.db_table, ("project_id", "hour", *KIND)
    columns = (*key, *SUMS)
    added = ", ".join(f"{name} = {table}.{name} + EXCLUDED.{name}" for name in SUMS)
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))}) "
            f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}",
            [[project, *(row[name] for name in columns[1:])] for row in counts.hour_rows()],
        )


def _add_facets(project: int, counts: Counts) -> None:
    given = {key: n for key, n in counts.facets.items() if n}
    facets = Facet.objects.filter(project=project)
    known = set(facets.filter(value__in={value for _, value in given}).values_list("kind", "value"))
    new = sorted(given.keys() - known)
    room: dict[str, int] = {}
    for kind in {kind for kind, _ in new}:
        room[kind] = FACETS_LIMIT - facets.filter(kind=kind).count()
    for kind, value in new:
        if room[kind] <= 0:
            del given[kind, value]
        room[kind] -= 1
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO trajectories_facet (project_id, kind, value, trajectories) VALUES (%s, %s, %s, %s) "
            "ON CONFLICT (project_id, kind, value) "
            "DO UPDATE SET trajectories = trajectories_facet.trajectories + EXCLUDED.trajectories",
            [[project, kind, value, n] for (kind, value), n in sorted(given.items())],
        )


def _index(touched: list[UUID]) -> None:
    found = Content.objects.filter(trajectory_id__in=touched).order_by("trajectory_id", "first")
    pieces: defaultdict[UUID, list[str]] = defaultdict(list)
    room: defaultdict[UUID, int] = defaultdict(lambda: TEXT_LIMIT)
    for pk, data in found.values_list("trajectory_id", "data").iterator(chunk_size=200):
        if room[pk] > 0:
            text = " ".join(words_of(contents.unpack(data)["messages"]))[: room[pk]]
            pieces[pk].append(text)
            room[pk] -= len(text) + 1
    texts = [(pk, " ".join(parts)) for pk, parts in pieces.items()]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO trajectories_searchtext (trajectory_id, words) VALUES (%s, to_tsvector('simple', %s)) "
            "ON CONFLICT (trajectory_id) DO UPDATE SET words = EXCLUDED.words",
            texts,
        )


def words_of(messages: Iterable[dict]) -> Iterator[str]:
    """What is searched: requests, answers, tool calls with their arguments, observations; not the prompt's own text."""
    for message in messages:
        if message.get("role") in ("system", "developer") or schema.is_example(message):
            continue
        yield from _strings(message.get("content"))
        for call in message.get("tool_calls") or []:
            yield call["function"]["name"]
            yield from _strings(call["function"].get("arguments"))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value.replace("\\n", " ")
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
