"""Deleting runs for good: with their spans, and so that nothing which comes late brings them
back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import ApiKey, Project
from apps.teamwork.actions import forget_orphans
from apps.trajectories import tombstones, traces
from apps.trajectories.actions import store
from apps.trajectories.models import SpanBatch, Trace, Trajectory, with_content
from apps.trajectories.otlp import late
from apps.trajectories.tombstones import Kind


@transaction.atomic
def delete(*, trajectory: Trajectory, key: ApiKey | None = None, by: Any = None) -> None:
    """Does nothing if another request deleted it first."""
    if purge(trajectory.project, [trajectory]):
        audit(
            "trajectory.deleted",
            project=trajectory.project,
            by=by,
            target=trajectory,
            actor_label=f"key {key.prefix}…" if key else "",
            external_id=trajectory.external_id,
        )


@transaction.atomic
def purge(
    project: Project,
    rows: Iterable[Trajectory],
    *,
    with_comments: bool = True,
    with_their_month: bool = False,
) -> int:
    """Deletes runs with their spans; tasks made from them stay. Returns how many this call
    deleted. Who deletes many removes the comments at the end (`forget_orphans`), and who deletes
    all of a month leaves the rows to its partitions (`store.remove`).
    """
    rows = list(rows)
    names = {row.external_id for row in rows}
    links = [f"run:{name}" for name in sorted(names)]
    # Before the runs, as the assembly locks them.
    of_runs = list(
        Trace.objects.filter(project=project, links__overlap=links)
        .select_for_update()
        .order_by("trace_id")
    )
    shared = [trace for trace in of_runs if not names.issuperset(trace.runs)]
    spans = _spans_of(row for row in rows if any(row.external_id in trace.runs for trace in shared))
    gone = store.remove(project, rows, with_their_month=with_their_month)
    tombstones.bury(project, Kind.RUN, gone)
    kept = {trace.trace_id for trace in of_runs}
    whole = (tombstones.trace_of(name) for name in gone - kept if ":" not in name)
    tombstones.bury(project, Kind.TRACE, filter(None, whole))
    for trace in of_runs:
        trace.runs = [name for name in trace.runs if name not in gone]
        if trace.runs:
            trace.deleted_spans = sorted(
                {*trace.deleted_spans, *(span for key, span in spans if key == trace.trace_id)}
            )
            trace.links = [f"run:{name}" for name in trace.runs]
            trace.save(update_fields=["runs", "links", "deleted_spans"])
            remove_deleted_spans(trace)
    forget_traces(project, [trace for trace in of_runs if not trace.runs])
    if gone and with_comments:
        forget_orphans(project)
    return len(gone)


def forget_traces(project: Project, deleted: Collection[Trace]) -> int:
    """Removes the traces of deleted runs, and what of their conversations comes late. Returns how
    many spans and log records there were.
    """
    if not deleted:
        return 0
    ids = [trace.trace_id for trace in deleted]
    tombstones.bury(project, Kind.TRACE, ids)
    links = {link for trace in deleted for link in trace.links if not link.startswith("run:")}
    tombstones.bury(project, Kind.LINK, links)
    batches = SpanBatch.objects.filter(project=project, trace_id__in=ids)
    items = sum(traces.size_of(traces.unpacked(batch)) for batch in batches)
    batches.delete()
    Trace.objects.filter(project=project, trace_id__in=ids).delete()
    return items


def remove_deleted_spans(trace: Trace) -> int:
    """Removes the deleted spans of a trace, what hangs below them, and their log records. Other
    runs keep theirs. Returns how many.
    """
    rows = [store.find(trace.project, name) for name in trace.runs]
    others = {span_id for _, span_id in _spans_of(row for row in rows if row)}
    batches = SpanBatch.objects.filter(project=trace.project, trace_id=trace.trace_id)
    parts = {batch: traces.unpacked(batch) for batch in batches}
    spans = [span for part in parts.values() for span in part.spans if span.span_id not in others]
    deleted = set(trace.deleted_spans) - others
    while below := {span.span_id for span in spans if span.parent_id in deleted} - deleted:
        deleted |= below
    removed = 0
    for batch, part in parts.items():
        left = traces.Packed(
            [span for span in part.spans if span.span_id not in deleted],
            [log for log in part.logs if log.span_id not in deleted],
        )
        if left != part:
            removed += traces.size_of(part) - traces.size_of(left)
            traces.repack(batch, left)
    trace.deleted_spans = sorted(deleted)
    trace.save(update_fields=["deleted_spans"])
    return removed


def _spans_of(rows: Iterable[Trajectory]) -> set[late.SpanKey]:
    return {key for row in with_content(list(rows)) for key in late.spans_of(row.metadata)}
