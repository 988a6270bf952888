"""What was accepted and is no run yet: bodies and spans that wait to be assembled, rows that wait
for Presidio, answers that the endpoint has on disk, files that are being imported.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from django.db.models import QuerySet
from django.db.models.functions import Now
from msgspec import Struct

from apps.core.bus import Question, ask, on
from apps.core.mentions import Mentioned, Words
from apps.core.models import Project
from apps.trajectories import assembly, digest, held, tombstones, traces
from apps.trajectories.actions import deletions
from apps.trajectories.models import Arrival, HeldBatch, SpanBatch, SpanBody, Trace
from apps.trajectories.redaction import RuleError
from apps.trajectories.tombstones import Kind

AT_ONCE = 200
USER = re.compile(r"(?<![^\W_])(?:end)?user(?:[._-]?id)?$", re.IGNORECASE)  # names of fields


class Unstored(Question[int]):
    """How many parts of what was accepted before then have not reached the database. Asks layers
    with a store of their own.
    """

    before: datetime


class KeptFiles(Question[Iterable[Path]]):
    """Files of a project on this machine that wait for a person. Asks layers that have some."""

    project: Project


def hurry(project: Project, before: datetime) -> None:
    """Traces that wait for more of their spans are assembled at once: what comes later of them is
    late.
    """
    due = Trace.objects.filter(project=project, due_at__isnull=False, first_at__lte=before)
    due.update(due_at=Now())


def work() -> int:
    """A bit of what workers do all the time, in case they are busy or away."""
    return traces.sort_some() + assembly.step() + digest.step()


def left(project: Project, before: datetime) -> list[str]:
    """What still has to become runs, in words; nothing that was set aside, which waits for a
    person.
    """
    bodies = SpanBody.objects.filter(project=project, received_at__lte=before).count()
    due = Trace.objects.waiting().filter(
        project=project, due_at__isnull=False, first_at__lte=before
    )
    arrivals = Arrival.objects.waiting().filter(project=project, at__lte=before).count()
    imports = project.uploads.active().filter(created_at__lte=before).count()
    counts = (
        (bodies, "OTLP request"),
        (due.count(), "trace"),
        (arrivals, "batch of new runs"),
        (imports, "import"),
        (sum(ask(Unstored(before))), "file of the endpoint"),
    )
    return [f"{n:,} × {what}" for n, what in counts if n]


class Person(Struct):
    """Words that mean them wherever they are, and ids that do where a user is named."""

    words: Words
    users: Collection[str]

    def is_in(self, value: Any) -> bool:
        """Anything that JSON can hold."""
        return self.words.are_in(value) or self._is_user_of(value)

    def _is_user_of(self, value: Any) -> bool:
        if isinstance(value, dict):
            return any(
                (USER.search(str(name)) and str(one) in self.users) or self._is_user_of(one)
                for name, one in value.items()
            )
        return isinstance(value, list | tuple) and any(map(self._is_user_of, value))


def drop_traces(project: Project, person: Person, after: int) -> tuple[int, int]:
    """Of the next batches of spans, those that mention the person go. Returns how many traces lost
    something, and the last batch that was read (0: there are no more).
    """
    rows = list(SpanBatch.objects.filter(project=project, pk__gt=after).order_by("pk")[:AT_ONCE])
    spans: defaultdict[str, set[str]] = defaultdict(set)
    for batch in rows:
        part = traces.unpacked(batch)
        for item in (*part.spans, *part.logs):
            if person.is_in(msgspec.to_builtins(item)):
                spans[batch.trace_id].add(item.span_id)
    found = Trace.objects.filter(project=project, trace_id__in=spans)
    for trace in found.select_for_update().order_by("trace_id"):
        if not trace.runs:
            deletions.forget_traces(project, [trace])
            continue
        trace.deleted_spans = sorted({*trace.deleted_spans, *spans[trace.trace_id]})
        deletions.remove_deleted_spans(trace)
    return len(spans), rows[-1].pk if rows else 0


def drop_held(project: Project, person: Person) -> Iterator[int]:
    """Rows and spans that wait, encrypted, for Presidio and mention the person. Yields how many,
    some at a time; -1 for one that no key opens.
    """
    after = 0
    while rows := list(_held(project, after)):
        after = rows[-1].pk
        for batch in rows:
            yield _drop_held(project, batch, person)


def _held(project: Project, after: int) -> QuerySet[HeldBatch]:
    rows = HeldBatch.objects.filter(project=project, pk__gt=after).order_by("pk")
    return rows.select_for_update(skip_locked=True)[:AT_ONCE]


def _drop_held(project: Project, batch: HeldBatch, person: Person) -> int:
    try:
        data = held.unsealed(batch)
    except RuleError:
        return -1
    value = msgspec.json.decode(data)
    if not person.is_in(value):
        return 0
    if batch.kind == HeldBatch.Kind.ROW:
        if name := _name_of(value):
            tombstones.bury(project, Kind.RUN, [name])
    else:
        packed = traces.decode(data)
        ids = {item.trace_id for item in (*packed.spans, *packed.logs)}
        mentioned = {
            item.trace_id
            for item in (*packed.spans, *packed.logs)
            if person.is_in(msgspec.to_builtins(item))
        }
        tombstones.bury(project, Kind.TRACE, mentioned)
        if rest := ids - mentioned:
            kept = traces.Packed(
                [span for span in packed.spans if span.trace_id in rest],
                [log for log in packed.logs if log.trace_id in rest],
            )
            held.hold(project, HeldBatch.Kind.SPANS, [msgspec.json.encode(kept)])
    batch.delete()
    return 1


@on(Mentioned[Trace])
def clean_problems(question: Mentioned[Trace]) -> int:
    """Why a trace was set aside may quote it. Its names stay: by them its runs are known."""
    found = list(question.rows.exclude(problem=""))
    for trace in found:
        trace.problem = question.words.out_of(trace.problem)
        trace.save(update_fields=["problem"])
    return len(found)


def _name_of(value: object) -> str:
    name = value.get("id") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""
