"""What comes over OTLP is kept as it comes, sorted by trace; `assembly` makes trajectories of it
once a trace is due.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import msgspec
from django.db import transaction
from django.db.models.functions import Now
from msgspec.structs import asdict, replace

from apps.core.lags import lag
from apps.core.models import Project
from apps.core.pipelined import one_trip, send
from apps.core.postgres import array
from apps.trajectories import contents, digest, held
from apps.trajectories.actions.redaction import looks_for_names, quick_redactor_of
from apps.trajectories.models import HeldBatch, SpanBatch, SpanBody, Trace
from apps.trajectories.otlp import (
    Event,
    LogRecord,
    Scope,
    Span,
    decode_logs,
    decode_traces,
    placed,
)
from apps.trajectories.redaction import Redactor

QUIET = timedelta(
    seconds=1
)  # no span for so long: the trace is due, unless it was at once, since its root has come
PATIENCE = timedelta(seconds=4)  # or this long after the first span that was not read
BODIES_AT_ONCE = 50


PUT = (
    "INSERT INTO trajectories_spanbatch (project_id, trace_id, received_at, data) VALUES ($1, $2,"
    " now(), $3)"
)
DUE = (
    "INSERT INTO trajectories_trace AS known (project_id, trace_id, due_at, first_at, touched_at,"
    " runs, links, forgotten) SELECT $1::bigint, id, CASE WHEN whole THEN now() ELSE now() +"
    " $2::interval END, now(), now(), '{}', '{}', false FROM unnest($3::text[], $4::bool[]) AS"
    " given(id, whole) ON CONFLICT (project_id, trace_id) DO UPDATE SET touched_at ="
    " EXCLUDED.touched_at, first_at = CASE WHEN known.due_at IS NULL THEN EXCLUDED.first_at ELSE"
    " known.first_at END, due_at = CASE WHEN known.due_at IS NULL THEN EXCLUDED.due_at ELSE"
    " least(EXCLUDED.due_at, known.first_at + $5::interval) END"
)

LOOK = (
    "SELECT has_bodies OR has_arrivals OR EXISTS (SELECT FROM trajectories_trace WHERE due_at <="
    " now()), has_bodies OR EXISTS (SELECT FROM trajectories_trace WHERE due_at IS NOT NULL) FROM"
    " (SELECT EXISTS (SELECT FROM trajectories_spanbody) AS has_bodies, EXISTS (SELECT FROM"
    " trajectories_arrival WHERE problem = '') AS has_arrivals)"
)


class Work(NamedTuple):
    """Whether there is something to sort, assemble or digest now, and whether spans have come that
    are not assembled yet.
    """

    is_due: bool
    has_spans: bool


class Packed(msgspec.Struct):
    spans: list[Span] = []
    logs: list[LogRecord] = []


Item = TypeVar("Item", Span, LogRecord)
_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Packed).decode


def keep_body(*, project: Project, signal: SpanBody.Signal, body: bytes) -> None:
    """Stores a protobuf body that `decode` can read, as it is. Durable when it returns; `sort_some`
    does the rest.
    """
    send(
        "INSERT INTO trajectories_spanbody (project_id, signal, received_at, data) VALUES ($1, $2,"
        " now(), $3)",
        [str(project.pk), str(signal), contents.compress(body)],
    )
    transaction.on_commit(digest.wake)


@transaction.atomic
def sort_some() -> int:
    """Sorts the spans of some bodies by trace. Returns the number of bodies."""
    bodies = list(
        SpanBody.objects.select_for_update(skip_locked=True).order_by("pk")[:BODIES_AT_ONCE]
    )
    by_project: defaultdict[int, Packed] = defaultdict(lambda: Packed([], []))
    for body in bodies:
        data, packed = contents.decompress(body.data), by_project[body.project_id]
        if body.signal == SpanBody.Signal.TRACES:
            packed.spans += decode_traces(data, json=False).items
        else:
            packed.logs += decode_logs(data, json=False).items
    for project in Project.objects.filter(pk__in=by_project).order_by("pk"):
        keep(project=project, spans=by_project[project.pk].spans, logs=by_project[project.pk].logs)
    SpanBody.objects.filter(pk__in=[body.pk for body in bodies]).delete()
    return len(bodies)


def keep(*, project: Project, spans: Iterable[Span] = (), logs: Iterable[LogRecord] = ()) -> None:
    """Stores what came. Durable when it returns; what belongs to no trace is dropped."""
    redactor, packed = quick_redactor_of(project), Packed(*placed(spans, logs))
    packed = redacted(redactor, packed) if redactor else packed
    if not looks_for_names(project):
        put(project, packed)
    elif packed.spans or packed.logs:
        held.hold(project, HeldBatch.Kind.SPANS, [_encode(packed)])


def redacted(redactor: Redactor, packed: Packed) -> Packed:
    """Traces in which a look over all they say finds nothing stay as they are."""
    suspects = {name for name, part in _by_trace(packed).items() if _may_hit(redactor, part)}
    if not suspects:
        return packed
    return Packed(
        [_redacted(redactor, i) if i.trace_id in suspects else i for i in packed.spans],
        [_redacted(redactor, i) if i.trace_id in suspects else i for i in packed.logs],
    )


def _by_trace(packed: Packed) -> dict[str, Packed]:
    parts: defaultdict[str, Packed] = defaultdict(lambda: Packed([], []))
    for span in packed.spans:
        parts[span.trace_id].spans.append(span)
    for log in packed.logs:
        parts[log.trace_id].logs.append(log)
    return parts


@transaction.atomic(savepoint=False)
def put(project: Project, packed: Packed) -> None:
    """Stores redacted spans and log records, to be assembled."""
    parts = _by_trace(packed)
    if not parts:
        return
    names = sorted(parts)  # two that keep spans of the same traces cannot deadlock
    with one_trip(commit=True):
        for name in names:
            send(PUT, [str(project.pk), name, contents.compress(_encode(parts[name]))])
        whole = array("t" if is_whole(parts[name].spans) else "f" for name in names)
        send(DUE, [str(project.pk), f"{QUIET}", array(names), whole, f"{PATIENCE}"])
        transaction.on_commit(digest.wake)


def size_of(packed: Packed) -> int:
    return len(packed.spans) + len(packed.logs)


def unpacked(batch: SpanBatch) -> Packed:
    return decode(contents.decompress(batch.data))


def repack(batch: SpanBatch, packed: Packed) -> None:
    """Replaces what a batch holds; an empty one goes."""
    if packed.spans or packed.logs:
        batch.data = contents.compress(_encode(packed))
        batch.save(update_fields=["data"])
    else:
        batch.delete()


def is_whole(spans: list[Span]) -> bool:
    """Whether a root and every parent are among the spans. A span is sent when it ends, so its
    children were before it.
    """
    ids = {
        span.span_id for span in spans if span.attributes.get("logfire.span_type") != "pending_span"
    }
    return any(not span.parent_id for span in spans) and all(
        span.span_id in ids and (not span.parent_id or span.parent_id in ids) for span in spans
    )


def _said(item: Span | LogRecord) -> dict[str, Any]:
    """What rules look at, but for its resource and scope."""
    if isinstance(item, LogRecord):
        return {
            "event_name": item.event_name,
            "body": item.body,
            "attributes": item.attributes,
        }
    return {
        "name": item.name,
        "status_message": item.status_message,
        "attributes": item.attributes,
        "events": [{"name": e.name, "attributes": e.attributes} for e in item.events],
        "links": [link.attributes for link in item.links],
    }


def _may_hit(redactor: Redactor, part: Packed) -> bool:
    items = [*part.spans, *part.logs]
    shared = {id(item.resource): item.resource for item in items}  # by many spans
    shared |= {id(item.scope): asdict(item.scope) for item in items}
    return redactor.may_hit({"said": [*map(_said, items)], "shared": [*shared.values()]})


def _redacted(redactor: Redactor, item: Item) -> Item:
    said, counts = redactor.redact(
        _said(item) | {"resource": item.resource, "scope": asdict(item.scope)}
    )
    if not counts:
        return item
    if isinstance(item, Span):
        times = (event.time_ns for event in item.events)
        events = zip(said["events"], times, strict=True)
        said["events"] = [Event(e["name"], time_ns, e["attributes"]) for e, time_ns in events]
        links = zip(item.links, said["links"], strict=True)
        said["links"] = [replace(link, attributes=attributes) for link, attributes in links]
    said["scope"] = Scope(**said["scope"])
    return replace(item, **said)


@lag("assembled")
def waiting_since() -> datetime | None:
    """Since when the oldest of the spans that have arrived should be a run."""
    body = SpanBody.objects.order_by("pk").values_list("received_at", flat=True).first()
    due = Trace.objects.filter(due_at__lte=Now()).order_by("due_at")
    return min(filter(None, (body, due.values_list("due_at", flat=True).first())), default=None)


def look() -> Work:
    """Cheap: workers ask many times a second."""
    ((is_due, has_spans),) = send(LOOK, ()).rows()
    return Work(is_due == "t", has_spans == "t")
