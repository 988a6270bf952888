"""The database half of OTLP: spans are kept as they come, and assembled into trajectories once a trace is quiet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
import zstandard
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project
from apps.trajectories import contents, digest, schema
from apps.trajectories.actions import feedback, store
from apps.trajectories.actions.redaction import redactor_of
from apps.trajectories.models import Cause, SpanBatch, SpanBody, Trace, Trajectory, TrajectoryKey
from apps.trajectories.otlp import LogRecord, Run, Span, assemble, decode_logs, decode_traces
from apps.trajectories.redaction import Redactor

QUIET = timedelta(seconds=1)  # no span for so long: the trace is read
PATIENCE = timedelta(seconds=4)  # or this long after the first span that was not read
BODIES_AT_ONCE = 50
AT_ONCE = 200  # traces of one transaction
RELATED = 200  # traces of the same talk that are looked at
TALK = timedelta(hours=24)  # how far apart the traces of one run may come
KEPT = timedelta(days=3)


class Packed(msgspec.Struct):
    spans: list[Span] = []
    logs: list[LogRecord] = []


SAID_BY_SPANS = ("name", "status_message", "attributes", "events", "resource")
SAID_BY_LOGS = ("body", "attributes", "resource")
Item = TypeVar("Item", Span, LogRecord)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Packed).decode


def keep_body(*, project: Project, signal: SpanBody.Signal, body: bytes) -> None:
    """Stores a protobuf body that `decode` can read, as it is. Durable when it returns; `sort_some` does the rest."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO trajectories_spanbody (project_id, signal, received_at, data) VALUES (%s, %s, %s, %b)",
            [project.pk, signal, timezone.now(), contents.compress(body)],
        )
    transaction.on_commit(digest.wake)


@transaction.atomic
def sort_some() -> int:
    """Sorts the spans of some bodies by trace. Returns the number of bodies."""
    bodies = list(SpanBody.objects.select_for_update(skip_locked=True).order_by("pk")[:BODIES_AT_ONCE])
    by_project: defaultdict[int, Packed] = defaultdict(lambda: Packed([], []))
    for body in bodies:
        data, packed = zstandard.decompress(bytes(body.data)), by_project[body.project_id]
        if body.signal == SpanBody.Signal.TRACES:
            packed.spans += decode_traces(data, json=False).items
        else:
            packed.logs += decode_logs(data, json=False).items
    for project in Project.objects.filter(pk__in=by_project):
        keep(project=project, spans=by_project[project.pk].spans, logs=by_project[project.pk].logs)
    SpanBody.objects.filter(pk__in=[body.pk for body in bodies]).delete()
    return len(bodies)


@transaction.atomic
def keep(*, project: Project, spans: Iterable[Span] = (), logs: Iterable[LogRecord] = ()) -> None:
    """Stores what came. Durable when it returns; what belongs to no trace is dropped."""
    parts: defaultdict[str, Packed] = defaultdict(lambda: Packed([], []))
    redactor = redactor_of(project)
    for span in spans:
        parts[span.trace_id].spans.append(_redacted(redactor, span, SAID_BY_SPANS) if redactor else span)
    for log in logs:
        if log.trace_id:
            parts[log.trace_id].logs.append(_redacted(redactor, log, SAID_BY_LOGS) if redactor else log)
    if not parts:
        return
    now = timezone.now()
    with connection.cursor() as cursor:
        with cursor.copy(
            "COPY trajectories_spanbatch (project_id, trace_id, received_at, data) FROM STDIN (FORMAT BINARY)"
        ) as copy:
            copy.set_types(["int8", "varchar", "timestamptz", "bytea"])
            for trace_id, part in parts.items():
                copy.write_row((project.pk, trace_id, now, contents.compress(_encode(part))))
        cursor.execute(
            "INSERT INTO trajectories_trace AS known (project_id, trace_id, dirty, first_at, touched_at, runs, links) "
            "SELECT %s, id, true, %s, %s, '{}', '{}' FROM unnest(%s::text[]) AS given(id) "
            "ON CONFLICT (project_id, trace_id) DO UPDATE SET dirty = true, touched_at = EXCLUDED.touched_at, "
            "first_at = CASE WHEN known.dirty THEN known.first_at ELSE EXCLUDED.first_at END",
            [project.pk, now, now, sorted(parts)],
        )
    transaction.on_commit(digest.wake)


def _redacted(redactor: Redactor, item: Item, names: tuple[str, ...]) -> Item:
    said = msgspec.to_builtins({name: getattr(item, name) for name in names})
    changed, counts = redactor.redact(said)
    return msgspec.convert(msgspec.to_builtins(item) | changed, type(item)) if counts else item


def is_waiting() -> bool:
    """Whether spans have come that are not assembled yet."""
    return Trace.objects.filter(dirty=True).exists() or SpanBody.objects.exists()


@transaction.atomic
def step(now: datetime | None = None) -> int:
    """Assembles traces that are quiet, some at a time. Returns how many; 0 where none is ready."""
    now = now or timezone.now()
    ready = Q(touched_at__lte=now - QUIET) | Q(first_at__lte=now - PATIENCE)
    traces = list(
        Trace.objects.filter(ready, dirty=True).select_for_update(skip_locked=True).order_by("touched_at")[:AT_ONCE]
    )
    by_project: defaultdict[int, list[Trace]] = defaultdict(list)
    for trace in traces:
        by_project[trace.project_id].append(trace)
    for project in Project.objects.filter(pk__in=by_project):
        _assemble(project, by_project[project.pk])
    return len(traces)


def _assemble(project: Project, traces: list[Trace]) -> None:
    known = {trace.trace_id: trace for trace in traces}
    runs = assemble(*_read(project, known))
    if related := _related(project, known, runs):
        known |= related
        runs = assemble(*_read(project, known))
    of_trace: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        for trace_id in run.trace_ids:
            of_trace[trace_id].append(run)
    now = {run.key for run in runs}
    parts = {name: trace.trace_id for trace in known.values() for name in trace.runs if name not in now}
    wholes = {name: of_trace[trace_id][0].key for name, trace_id in parts.items() if of_trace[trace_id]}
    feedback.move(project, wholes)
    _forget(project, set(parts))
    store.ingest(project=project, rows=[schema.Decoded(run.row) for run in runs], cause=Cause.ASSEMBLED)
    feedback.apply_to(project, set(wholes.values()))
    for trace_id, trace in known.items():
        trace.runs = [run.key for run in of_trace[trace_id]]
        trace.links = sorted({link for run in of_trace[trace_id] for link in (*run.links.has, f"run:{run.key}")})
    _save(known.values())


def _related(project: Project, known: dict[str, Trace], runs: list[Run]) -> dict[str, Trace]:
    """The other traces of these runs: those that go on where one ends or end where one begins, and all of their runs."""
    wanted = {link for run in runs for link in run.links.wants}
    found: dict[str, Trace] = {}
    names = {name for trace in known.values() for name in trace.runs}
    while wanted or names:
        wanted |= {f"run:{name}" for name in names}
        rows = (
            Trace.objects.filter(project=project, touched_at__gte=timezone.now() - TALK, links__overlap=sorted(wanted))
            .exclude(trace_id__in=[*known, *found])
            .select_for_update()
            .order_by("-touched_at")[:RELATED]
        )
        new = {trace.trace_id: trace for trace in rows}
        found |= new
        wanted, names = set(), {name for trace in new.values() for name in trace.runs} - names
    return found


def _read(project: Project, traces: Iterable[str]) -> tuple[list[Span], list[LogRecord]]:
    spans: list[Span] = []
    logs: list[LogRecord] = []
    found = SpanBatch.objects.filter(project=project, trace_id__in=list(traces)).order_by("pk")
    for data in found.values_list("data", flat=True).iterator(chunk_size=200):
        part = _decode(zstandard.decompress(bytes(data)))
        spans += part.spans
        logs += part.logs
    return spans, logs


def _forget(project: Project, names: set[str]) -> None:
    """Removes runs that turned out to be parts of others."""
    keys = TrajectoryKey.objects.filter(project=project, external_id__in=names)
    if rows := list(Trajectory.objects.filter(pk__in=keys.values_list("trajectory_id", flat=True))):
        store.purge(project, rows)


def _save(traces: Iterable[Trace]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE trajectories_trace SET dirty = false, runs = %s, links = %s WHERE project_id = %s AND trace_id = %s",
            [[trace.runs, trace.links, trace.project_id, trace.trace_id] for trace in traces],
        )


def forget_old(now: datetime | None = None) -> int:
    """Removes spans that are assembled and too old to be joined by others. Returns the number of batches."""
    before = (now or timezone.now()) - KEPT
    deleted, _ = SpanBatch.objects.filter(received_at__lt=before).delete()
    Trace.objects.filter(dirty=False, touched_at__lt=before).delete()
    return deleted
