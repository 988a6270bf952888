"""Runs, steps and scores as Parquet in the artifact store, a file for each table and day (UTC), for
those who read by SQL.

The files hold numbers, names, states and times, and nothing that was said: no messages, arguments,
errors, reasons or comments. So what is held out does not leave by them, and a set that is frozen
later need not be looked for in what is there already.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Case, F, Max, Min, QuerySet, TextField, Value, When
from django.utils import timezone
from msgspec import Struct

from apps.core import jobs, locks
from apps.core.actions import audit
from apps.core.bus import on
from apps.core.kinds import Progress
from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.core.operations import Moment, Page, Rest, operation
from apps.core.postgres import Array
from apps.core.projects.deletion import Deleting
from apps.core.stores import OtherFiles, StoredFile, store
from apps.trajectories.ids import floor_of, time_of
from apps.trajectories.models import ParquetExport, ParquetFile, Score, Step, Trajectory

AT_ONCE, ROW_GROUP = 5_000, 100_000
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Column:
    """`kind` is one of KINDS; `source` the field that it is read from."""

    name: str
    kind: str
    about: str
    source: Any = None


@dataclass(frozen=True, slots=True)
class Table:
    """`of_day` are the rows between two times, `span` the first and last time that there is."""

    name: str
    about: str
    columns: tuple[Column, ...]
    of_day: Callable[[Project, datetime, datetime], QuerySet]
    span: Callable[[Project], tuple[datetime, datetime] | None]


KINDS = {
    "text": ("string", "VARCHAR"),
    "texts": ("list<string>", "VARCHAR[]"),
    "time": ("timestamp[us, UTC]", "TIMESTAMPTZ"),
    "real": ("double", "DOUBLE"),
    "whole": ("int64", "BIGINT"),
}


def _run_span(project: Project) -> tuple[datetime, datetime] | None:
    ids = project.trajectories.order_by("pk").values_list("pk", flat=True)
    return (time_of(first), time_of(ids.last())) if (first := ids.first()) else None


def _score_span(project: Project) -> tuple[datetime, datetime] | None:
    found = project.scores.aggregate(first=Min("created_at"), last=Max("created_at"))
    return (found["first"], found["last"]) if found["first"] else None


def _by_id(rows: QuerySet, field: str, begin: datetime, end: datetime) -> QuerySet:
    return rows.filter(
        **{f"{field}__gte": floor_of(begin), f"{field}__lt": floor_of(end)}
    ).order_by("pk")


TOKENS = tuple(
    Column(name, "whole", about)
    for name, about in (
        ("input_tokens", "With those of caches"),
        ("output_tokens", "With those of reasoning"),
    )
)
AGENT = (
    Column("agent", "text", "", "agent_name"),
    Column("agent_version", "text", ""),
)
TABLES = {
    table.name: table
    for table in (
        Table(
            "runs",
            "One row per run, under the day on which it started.",
            (
                Column("run_id", "text", "Flywheel's id, by which steps and scores join", "id"),
                Column("external_id", "text", "The id that the agent sent"),
                *AGENT,
                Column("model", "text", ""),
                Column("workload", "text", ""),
                Column("session_id", "text", ""),
                Column("user_id", "text", ""),
                Column("started_at", "time", ""),
                Column("ended_at", "time", ""),
                Column("received_at", "time", ""),
                Column("outcome_status", "text", "success, failure or unknown"),
                Column("outcome_reward", "real", ""),
                Column("outcome_label", "text", ""),
                *TOKENS,
                Column("cache_read_tokens", "whole", "Part of the input"),
                Column("cache_write_tokens", "whole", "Part of the input"),
                Column("reasoning_tokens", "whole", "Part of the output"),
                Column("cost_usd", "real", ""),
                Column("cost_basis", "text", "sent, priced or at_least"),
                Column("latency_ms", "real", ""),
                Column("message_count", "whole", ""),
                Column("tags", "texts", ""),
                Column("tool_names", "texts", "Tools that were called"),
            ),
            lambda project, *day: _by_id(project.trajectories.all(), "pk", *day),
            _run_span,
        ),
        Table(
            "steps",
            "One row per step, under the day on which its run started.",
            (
                Column("run_id", "text", "Of the run", "trajectory_id"),
                Column("number", "whole", "Its place among the steps of the run"),
                Column("key", "text", "Names it within the run"),
                Column("kind", "text", "model, tool, retrieval, guardrail or agent"),
                Column("name", "text", ""),
                Column("status", "text", "ok, error, interrupted or unanswered"),
                Column("model", "text", ""),
                *AGENT,
                Column("started_at", "time", ""),
                Column("duration_ms", "real", ""),
                *TOKENS,
                Column("cost_usd", "real", ""),
                Column("message_index", "whole", "The message in the run"),
            ),
            lambda project, *day: _by_id(
                Step.objects.filter(project=project), "trajectory_id", *day
            ),
            _run_span,
        ),
        Table(
            "scores",
            "One row per score, under the day on which it was given.",
            (
                Column("run_id", "text", "Null: the run has not arrived", "trajectory_id"),
                Column("external_id", "text", "The id that the agent sent"),
                Column("step", "text", "Key of the step; empty: of the run"),
                Column("name", "text", ""),
                Column("kind", "text", "number, yes_no, category or text"),
                Column("value", "real", "Of a number; yes is 1, no is 0"),
                Column(
                    "category",
                    "text",
                    "Of a category",
                    Case(
                        When(kind=Score.Kind.CATEGORY, then=F("text")),
                        default=Value(""),
                        output_field=TextField(),
                    ),
                ),
                Column("source", "text", "person, code, judge, otlp or import"),
                Column("by", "text", ""),
                Column("created_at", "time", ""),
            ),
            lambda project, begin, end: project.scores.filter(
                created_at__gte=begin, created_at__lt=end
            ).order_by("pk"),
            _score_span,
        ),
    )
}


class ParquetFileOut(Struct):
    table: str
    day: date
    rows: int
    size: int
    file: str
    written_at: Moment


class ParquetExportOut(Struct):
    """`result` of one that has ended: files written, removed and unchanged, and rows written."""

    id: UUID
    state: str
    done: int
    total: int
    error: str
    result: dict[str, Any]
    created_at: Moment
    finished_at: Moment | None


@operation(
    "parquet_files",
    rest=Rest("GET", "parquet-files/", "parquet_files"),
    gives=list[ParquetFileOut],
)
def listed(*, project: Project) -> QuerySet[ParquetFile]:
    """The Parquet files of runs, steps and scores in the artifact store, the newest days first."""
    return project.parquet_files.written().order_by("-day", "table")


@operation(
    "parquet_exports",
    rest=Rest("GET", "parquet-exports/", "parquet_exports"),
    gives=list[ParquetExportOut],
)
def exports(*, project: Project) -> QuerySet[ParquetExport]:
    """The last 50 exports, the newest first."""
    return project.parquetexports.all()[:50]


@operation(
    "parquet_export",
    rest=Rest("POST", "parquet-exports/", "parquet_exports", 201),
    page=Page(
        "parquet/export/",
        "parquet_export",
        done="The days that have changed are being written.",
        then="trajectories:parquet",
    ),
    gives=ParquetExportOut,
)
@transaction.atomic
def start(*, project: Project, by: Any) -> ParquetExport:
    """Writes the days of runs, steps and scores that have changed since the last export to the
    artifact store, as Parquet; an export that is running is the answer. A flow does it by a
    schedule (`export_parquet`).
    """
    locks.acquire_in(project.pk, ProjectLock.PARQUET)
    if active := project.parquetexports.active().first():
        return active
    return jobs.submit(ParquetExport(project=project, name="Parquet export"), by=by)


@operation(
    "parquet_remove",
    rest=Rest("DELETE", "parquet-files/", "parquet_files"),
    page=Page(
        "parquet/remove/",
        "parquet_remove",
        done="The files are removed.",
        then="trajectories:parquet",
    ),
    says={"parquet.removed": "removed the [{n|file|files} of the ]Parquet export"},
)
@transaction.atomic
def remove(*, project: Project, by: Any) -> None:
    """Removes all Parquet files of the project from the artifact store. Runs stay as they are."""
    if n := _forget(project.parquet_files.all()):
        audit("parquet.removed", project=project, by=by, target=project, n=n)


def days_of(project: Project, table: Table) -> list[date]:
    """The days that have rows or a file."""
    files = set(project.parquet_files.filter(table=table.name).values_list("day", flat=True))
    if span := table.span(project):
        at, last = (one.date() for one in span)
        while at <= last:
            begin, end = _bounds(at)
            if table.of_day(project, begin, end).order_by().exists():
                files.add(at)
                at += DAY
            else:
                following = table.of_day(project, end, _bounds(last)[1]).first()
                at = _day_of(following) if following else last + DAY
    return sorted(files)


def _bounds(day: date) -> tuple[datetime, datetime]:
    begin = datetime.combine(day, time(), UTC)
    return begin, begin + DAY


def _day_of(row: Trajectory | Step | Score) -> date:
    if isinstance(row, Score):
        return row.created_at.astimezone(UTC).date()
    return time_of(row.pk if isinstance(row, Trajectory) else row.trajectory_id).date()


def steps(job: ParquetExport) -> Iterator[Progress]:
    """A file is one step: an export that was cut off goes on with the next. All are known of before
    the first is written.
    """
    project, cursor = job.project, {"after": "", "written": 0, "rows": 0, "removed": 0} | job.cursor
    units = [(name, day) for name, table in TABLES.items() for day in days_of(project, table)]
    order = list(TABLES)
    unwritten = {"rows": 0, "size": 0, "fingerprint": "", "written_at": timezone.now()}
    ParquetFile.objects.bulk_create(
        (ParquetFile(project=project, table=name, day=day, **unwritten) for name, day in units),
        ignore_conflicts=True,
    )
    yield Progress(0, len(units), "Days of runs, steps and scores", cursor)
    for done, (name, day) in enumerate(units, 1):
        place = f"{order.index(name)} {day}"
        if place <= cursor["after"]:
            continue
        rows = write(project, TABLES[name], day)
        cursor["after"] = place
        if rows is not None:
            cursor["written" if rows else "removed"] += 1
            cursor["rows"] += rows
        yield Progress(done, len(units), f"{name} of {day}", cursor)
    return {name: cursor[name] for name in ("written", "removed", "rows")}


def write(project: Project, table: Table, day: date) -> int | None:
    """Writes the file of a day if the day has changed. Returns its rows; None: nothing has."""
    locks.acquire_in(project.pk, ProjectLock.PARQUET)  # what is deleted meanwhile waits
    rows = table.of_day(project, *_bounds(day)).values_list(
        *(column.source or column.name for column in table.columns)
    )
    file = project.parquet_files.filter(table=table.name, day=day).first()
    fingerprint = _fingerprint(rows)
    if not fingerprint:
        _forget(project.parquet_files.filter(table=table.name, day=day))
        return 0
    if file and file.fingerprint == fingerprint:
        return None
    path, count = _written(table, rows)
    try:
        with path.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        size = path.stat().st_size
        store().put(ParquetFile.name_of(project.pk, table.name, day), path)
    finally:
        path.unlink()
    ParquetFile.objects.update_or_create(
        project=project,
        table=table.name,
        day=day,
        defaults={
            "rows": count,
            "size": size,
            "sha256": digest,
            "fingerprint": fingerprint,
            "written_at": timezone.now(),
        },
    )
    return count


def _fingerprint(rows: QuerySet) -> str:
    """Of what a file would say; "" of no rows."""
    sql, params = rows.order_by().query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), bit_xor(hashtextextended(said::text, 0)), sum(hashtext(said::text))"
            f" FROM ({sql}) AS said",
            params,
        )
        count, *hashes = cursor.fetchone()
    return " ".join(map(str, (count, *hashes))) if count else ""


def _written(table: Table, rows: QuerySet) -> tuple[Path, int]:
    import pyarrow as pa  # only here: tens of megabytes, which the web process need not hold
    import pyarrow.parquet as pq

    kinds = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "time": pa.timestamp("us", tz="UTC"),
        "real": pa.float64(),
        "whole": pa.int64(),
    }
    schema = pa.schema([(column.name, kinds[column.kind]) for column in table.columns])
    handle, name = tempfile.mkstemp(suffix=".parquet", dir=settings.FLYWHEEL_DATA_DIR)
    os.close(handle)
    count, found = 0, rows.iterator(chunk_size=AT_ONCE)
    with pq.ParquetWriter(name, schema, compression="zstd") as writer:
        while some := list(islice(found, ROW_GROUP)):
            count += len(some)
            columns = zip(*some, strict=True)
            arrays = [
                pa.array([str(v) if isinstance(v, UUID) else v for v in values], field.type)
                for values, field in zip(columns, schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return Path(name), count


@transaction.atomic
def forget_days(project: Project, runs: Collection[UUID], names: Array) -> None:
    """Removes the files that have something of these runs, which are about to go; the next export
    writes their days anew.
    """
    files = project.parquet_files.all()
    if not files.exists():
        return
    locks.acquire_in(project.pk, ProjectLock.PARQUET)
    _forget(files.filter(table__in=("runs", "steps"), day__in={time_of(pk).date() for pk in runs}))
    scored = project.scores.filter(external_id__among=names).values_list("created_at", flat=True)
    _forget(files.filter(table="scores", day__in={at.astimezone(UTC).date() for at in scored}))


def _forget(files: QuerySet[ParquetFile]) -> int:
    then = remove_files(Deleting(files))
    n, _ = files.delete()
    then()
    return n


@on(Deleting[ParquetFile])
def remove_files(event: Deleting[ParquetFile]) -> Callable[[], None]:
    names = [row.file for row in event.rows]
    return lambda: transaction.on_commit(lambda: [store().delete(name) for name in names])


@on(OtherFiles)
def stored_files(question: OtherFiles) -> Iterable[StoredFile]:
    for row in ParquetFile.objects.written().order_by("pk").iterator():
        yield StoredFile(row.file, row.size, row.sha256)


def shown_schema() -> list[Mapping[str, Any]]:
    """The tables for the page, with their types in Parquet and in SQL."""
    return [
        {
            "name": table.name,
            "about": table.about,
            "columns": [
                (column.name, *KINDS[column.kind], column.about) for column in table.columns
            ],
        }
        for table in TABLES.values()
    ]
