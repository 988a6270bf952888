"""What happens in the seconds after trajectories arrived: roll-ups, filter choices, full text,
steps. Each arrival once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from apps.core import locks
from apps.core.bus import Event, publish
from apps.core.lags import lag
from apps.core.locks import ProjectLock
from apps.core.postgres import array, unnested
from apps.core.waking import Waker
from apps.trajectories import contents, media, step_store
from apps.trajectories.actions import scores
from apps.trajectories.metrics import cell_store
from apps.trajectories.models import Arrival, Content, Facet, HourlyCount, SearchText, Trajectory
from apps.trajectories.rollups import KIND, SUMS, Counts
from apps.trajectories.scores import Came, of_metadata
from apps.trajectories.steps import Reader, Step
from flywheel.outages import is_transient
from workers.lib.messages import is_example, is_prompt, unread_calls

log = logging.getLogger(__name__)
AT_ONCE, ROWS_AT_ONCE = (
    400,
    4_000,
)  # arrivals of one transaction: each rewrites the cells of its hour, so small ones go together
LOOKED_AT = 1_000  # arrivals, for the projects that wait
TEXT_LIMIT = 200_000  # characters of one trajectory that are indexed
READ_AT_ONCE = 200  # trajectories, and chunks of their contents
WRITTEN_AT_ONCE = 2**20  # characters
SHORT_TEXT = 20_000  # and of one whose words PostgreSQL has no room for
FACETS_LIMIT = 2_000  # values of a kind in a project
TASK, EXPIRES_S = "trajectories.digest", 30

wake = Waker(TASK, expires_s=EXPIRES_S, every_s=1.0)


class RunsDigested(Event):
    """Runs of a project were stored, changed or removed. `counts` were added to its hours, in the
    digest's transaction, so that each arrival counts once for listeners, too.
    """

    project: int
    counts: Counts
    trajectories: Sequence[UUID]


def run() -> int:
    """Digests what there is. Returns the number of arrivals."""
    done = 0
    while some := step():
        done += some
    return done


@transaction.atomic
def step() -> int:
    """One transaction's worth of one project; 0 if nothing is left, or others are digesting it."""
    waiting = Arrival.objects.waiting().order_by("pk")
    projects = dict.fromkeys(waiting.values_list("project_id", flat=True)[:LOOKED_AT])
    arrivals = next(filter(None, map(_claimed, projects)), None)
    if arrivals is None:
        return 0
    try:
        with transaction.atomic():
            _digest(arrivals)
            return len(arrivals)
    except Exception as error:
        if is_transient(error):
            raise
    for arrival in arrivals:
        _digest_or_set_aside(arrival)
    return len(arrivals)


@lag("digested")
def waiting_since() -> datetime | None:
    """Since when the oldest run is not in charts and searches."""
    return Arrival.objects.waiting().order_by("pk").values_list("at", flat=True).first()


def _claimed(project: int) -> list[Arrival]:
    """The oldest arrivals of a project that no other process digests; none where one has to wait.

    No two arrivals of nothing but new runs have a run in common, so several processes digest them.
    One with a changed run is digested alone: after those before it, and before those after it. So
    what is read last is what is written last.
    """
    waiting = Arrival.objects.waiting().filter(project=project).order_by("pk")
    new = waiting.filter(only_new=True)
    changed = waiting.filter(only_new=False).values_list("pk", flat=True).first()
    before = new if changed is None else new.filter(pk__lt=changed)
    if before.exists():
        if not locks.try_acquire_in(project, ProjectLock.DIGEST, shared=True):
            return []
        return _some(before.select_for_update(skip_locked=True))
    return _some(waiting) if locks.try_acquire_in(project, ProjectLock.DIGEST) else []


def _some(waiting: QuerySet[Arrival]) -> list[Arrival]:
    found: list[Arrival] = []
    rows = 0
    for arrival in waiting[:AT_ONCE]:
        rows += len(arrival.trajectories)
        if found and rows > ROWS_AT_ONCE:
            break
        found.append(arrival)
    return found


def _digest_or_set_aside(arrival: Arrival) -> None:
    """What cannot be digested would be met again each time, and nobody's arrivals after it would be
    digested.
    """
    try:
        with transaction.atomic():
            _digest([arrival])
    except Exception as error:
        if is_transient(error):
            raise
        log.exception("Arrival %s of project %s is set aside", arrival.pk, arrival.project_id)
        Arrival.objects.filter(pk=arrival.pk).put_aside(error)


def _digest(arrivals: list[Arrival]) -> None:
    by_project: defaultdict[int, Counts] = defaultdict(Counts)
    touched: defaultdict[int, dict[UUID, None]] = defaultdict(dict)
    for arrival in arrivals:
        by_project[arrival.project_id].merge(arrival.counts)
        touched[arrival.project_id] |= dict.fromkeys(arrival.trajectories)
    for project, counts in sorted(by_project.items()):
        _index(project, list(touched[project]))
        locks.acquire_in(project, ProjectLock.COUNTS)
        _add_hours(project, counts)
        cell_store.add(project, counts)
        _add_facets(project, counts)
        publish(RunsDigested(project, counts, list(touched[project])))
    Arrival.objects.filter(pk__in=[arrival.pk for arrival in arrivals]).delete()


def _add_hours(project: int, counts: Counts) -> None:
    table, key = HourlyCount._meta.db_table, ("project_id", "hour", *KIND)
    names = ("hour", *KIND, *SUMS)
    added = ", ".join(f"{name} = {table}.{name} + EXCLUDED.{name}" for name in SUMS)
    rows = [[row[name] for name in names] for row in counts.hour_rows()]
    source, values = unnested(HourlyCount, rows, names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (project_id, {', '.join(names)}) SELECT %s, given.* FROM"
            f" {source} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}",
            [project, *values],
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
    rows = [(kind, value, n) for (kind, value), n in sorted(given.items())]
    source, values = unnested(Facet, rows, ("kind", "value", "trajectories"))
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO trajectories_facet (project_id, kind, value, trajectories) SELECT %s,"
            f" given.* FROM {source} ON CONFLICT (project_id, kind, value) DO UPDATE SET"
            " trajectories = trajectories_facet.trajectories + EXCLUDED.trajectories",
            [project, *values],
        )
    # The words of runs that were deleted; below 0, a run was deleted before it was counted.
    facets.filter(value__in={value for _, value in given}, trajectories=0).delete()


def _index(project: int, touched: list[UUID]) -> None:
    """Writes the words and the steps of runs, for which each is decoded once."""
    read: list[Read] = []
    size = 0
    wanted = sorted(touched)
    for some in (wanted[at : at + READ_AT_ONCE] for at in range(0, len(wanted), READ_AT_ONCE)):
        rows = Trajectory.objects.filter(pk__among=some).values(
            "pk", "external_id", *step_store.OF_A_RUN
        )
        runs = {row["pk"]: row for row in rows}
        step_store.delete(project, some)
        if not runs:  # deleted meanwhile, or for good
            SearchText.objects.filter(trajectory_id__among=some).delete()
            continue
        found = Content.objects.filter(trajectory_id__among=some).order_by("trajectory_id", "first")
        parts = found.values_list("trajectory_id", "data").iterator(chunk_size=READ_AT_ONCE)
        gone = set(some)
        for pk, of_one in groupby(parts, itemgetter(0)):
            if pk not in runs:
                continue
            gone.discard(pk)
            read.append(_read(pk, runs[pk], (data for _, data in of_one)))
            size += len(read[-1].text)
            if size >= WRITTEN_AT_ONCE:
                _write_all(project, read)
                read, size = [], 0
        # Deleted while an earlier digest wrote their words.
        SearchText.objects.filter(trajectory_id__among=gone).delete()
    if read:
        _write_all(project, read)


class Read(NamedTuple):
    """A run that was read: `text` is what is searched in it, of a long one the beginning."""

    pk: UUID
    run: dict[str, Any]
    text: str
    steps: list[Step]
    scores: list[Came]


def _read(pk: UUID, run: dict[str, Any], parts: Iterable[bytes]) -> Read:
    pieces: list[str] = []
    room = TEXT_LIMIT
    reader: Reader | None = None
    came: list[Came] = []
    for data in parts:
        content = contents.unpack(data)
        if reader is None:
            reader, came = Reader(run, content["metadata"]), of_metadata(content["metadata"])
        reader.read(content["messages"])
        if room > 0:
            pieces.append(" ".join(words_of(content["messages"]))[:room])
            room -= len(pieces[-1]) + 1
    return Read(pk, run, " ".join(pieces), reader.steps() if reader else [], came)


def _write_all(project: int, read: list[Read]) -> None:
    scores.replace_with_runs(
        project,
        {one.pk: one.run["external_id"] for one in read},
        ((one.pk, came) for one in read for came in one.scores),
    )
    step_store.write(project, ((one.pk, one.run, one.steps) for one in read))
    _write([(one.pk, one.text) for one in read])


def _write(texts: list[tuple[UUID, str]]) -> None:
    try:
        with transaction.atomic():
            _write_words(texts)
    except DatabaseError as error:
        if is_transient(error):
            raise
        for (
            pk,
            text,
        ) in (
            texts
        ):  # a tsvector holds 1 MiB, which a text of nothing but different words may exceed
            _write_what_fits(pk, text)


def _write_what_fits(pk: UUID, text: str) -> None:
    try:
        with transaction.atomic():
            _write_words([(pk, text)])
    except DatabaseError as error:
        if is_transient(error):
            raise
        _write_words([(pk, text[:SHORT_TEXT])])


def _write_words(texts: list[tuple[UUID, str]]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO trajectories_searchtext (trajectory_id, words) SELECT id,"
            " to_tsvector('simple', said) FROM unnest(%s::uuid[], %s::text[]) AS given(id, said) ON"
            " CONFLICT (trajectory_id) DO UPDATE SET words = EXCLUDED.words",
            [array(str(pk) for pk, _ in texts), array(text for _, text in texts)],
        )


def words_of(messages: Iterable[dict]) -> Iterator[str]:
    """What is searched: requests, answers, tool calls with their arguments, observations; not the
    prompt's own text.
    """
    for message in messages:
        if is_prompt(message) or is_example(message):
            continue
        yield from _strings(message.get("content"))
        for tool, given in unread_calls(message):
            yield tool
            yield from _strings(given)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not media.is_embedded(value):
            yield media.unquoted(value).replace("\\n", " ")
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
