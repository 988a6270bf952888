"""Traces that are due become trajectories. Several processes take different traces; what is stored
never gets less.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models.functions import Now
from django.utils import timezone

from apps.core import locks
from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.core.pipelined import send
from apps.core.postgres import array
from apps.trajectories import contents, late_data, tombstones
from apps.trajectories.actions import deletions, feedback, scores, store
from apps.trajectories.decoding import Decoded
from apps.trajectories.models import (
    Cause,
    LateData,
    SpanBatch,
    Trace,
    Trajectory,
    TrajectoryKey,
    with_content,
)
from apps.trajectories.otlp import Links, LogRecord, Run, Span, assemble, late
from apps.trajectories.otlp.runs import TALKS
from apps.trajectories.tombstones import Kind
from apps.trajectories.traces import decode
from flywheel.outages import is_transient
from workers.lib.token_usage import TOKENS

log = logging.getLogger(__name__)
AT_ONCE = 200  # traces of one transaction
RELATED = 200  # traces of the same talk that are looked at
TALK = timedelta(hours=24)  # how far apart the traces of one run may come
POSTPONED = timedelta(seconds=0.2)
KEPT = timedelta(days=3)
USAGE = (*TOKENS, "cost_usd", "cost_basis")
SAVE = (
    "UPDATE trajectories_trace AS trace SET due_at = NULL, touched_at = now(), runs ="
    " given.runs::text[], links = given.links::text[], forgotten = false, problem = '' FROM"
    " unnest($2::text[], $3::text[], $4::text[]) AS given(trace_id, runs, links) WHERE"
    " trace.project_id = $1::bigint AND trace.trace_id = given.trace_id"
)
REMEMBERED = timedelta(days=400)
FORGOTTEN_AT_ONCE = 500


@transaction.atomic
def step(now: datetime | None = None) -> int:
    """Assembles due traces, some at a time. Returns how many; 0 if none is due, or others have
    them.

    Rows that another process has locked are skipped, here and below: nobody waits for a lock on a
    trace while holding one, so processes cannot deadlock.
    """
    due = (
        Trace.objects.filter(due_at__lte=now or Now())
        .select_for_update(skip_locked=True)
        .order_by("due_at")[:AT_ONCE]
    )
    by_project: defaultdict[int, list[Trace]] = defaultdict(list)
    for trace in due:
        by_project[trace.project_id].append(trace)
    for project in Project.objects.filter(pk__in=by_project).order_by("pk"):
        _assemble_all(project, by_project[project.pk])
    return sum(map(len, by_project.values()))


def _assemble_all(project: Project, traces: list[Trace]) -> None:
    """All together, or else each alone. One that cannot be assembled is set aside until more of it
    comes.
    """
    try:
        with transaction.atomic():
            _assemble(project, traces)
    except Exception as error:
        if is_transient(error):
            raise
        if len(traces) > 1:
            for trace in traces:
                _assemble_all(project, [trace])
            return
        log.exception("Trace %s of project %s is set aside", traces[0], project)
        Trace.objects.filter(project=project, trace_id=traces[0].trace_id).put_aside(
            error, due_at=None
        )


def _assemble(project: Project, traces: list[Trace]) -> None:
    known = {trace.trace_id: trace for trace in _without_deleted(project, traces)}
    spans, logs = _read(project, known)
    runs = assemble(spans, logs)
    if any(run.links for run in runs) or any(trace.is_joined for trace in traces):
        if not locks.try_acquire_in(project.pk, ProjectLock.STITCHING):
            runs = _postpone(project, known, runs)
        elif related := _related(project, known, runs):
            known |= related
            spans, logs = _read(project, known)
            runs = assemble(spans, logs)
    runs = _without_deleted_talks(project, known, runs)
    names = {run.key for run in runs} | {name for trace in known.values() for name in trace.runs}
    stored = _stored(project, names)
    at_hand = {(span.trace_id, span.span_id) for span in spans}
    lasting = _lasting(known.values(), stored, at_hand)
    others = [row for row in stored if row.external_id not in lasting]
    if lasting:
        runs = _late_runs(spans, logs, known, lasting, others)
    _rename_deleted(project, runs, stored, known)
    _replace(project, runs, others)
    _save(project, known.values(), runs, lasting)


def _without_deleted(project: Project, traces: list[Trace]) -> list[Trace]:
    """The traces that have other runs than deleted ones; what came late of those is removed."""
    deleted = tombstones.deleted(project, Kind.TRACE, [trace.trace_id for trace in traces])
    runs = tombstones.deleted(project, Kind.RUN, {name for trace in traces for name in trace.runs})
    gone = [
        trace
        for trace in traces
        if trace.trace_id in deleted or (trace.runs and runs.keys() >= set(trace.runs))
    ]
    late_data.note(project.pk, LateData.Kind.SPANS, deletions.forget_traces(project, gone))
    left = [trace for trace in traces if trace not in gone]
    for trace in left:
        if trace.deleted_spans:
            dropped = deletions.remove_deleted_spans(trace)
            late_data.note(project.pk, LateData.Kind.SPANS, dropped)
    return left


def _without_deleted_talks(project: Project, known: dict[str, Trace], runs: list[Run]) -> list[Run]:
    """The runs but those that go on with a deleted one and began before its deletion. Takes their
    traces out of `known`.
    """
    new = [
        run
        for run in runs
        if run.links and not any(known[trace_id].runs for trace_id in run.trace_ids)
    ]
    wants = {run.key: {link for links in run.links.values() for link in links.wants} for run in new}
    deleted = tombstones.deleted(project, Kind.LINK, set().union(*wants.values()))
    gone = {
        trace_id
        for run in new
        if _goes_on(run, wants[run.key], deleted)
        for trace_id in run.trace_ids
    }
    dropped = deletions.forget_traces(project, [known.pop(trace_id) for trace_id in gone])
    late_data.note(project.pk, LateData.Kind.SPANS, dropped)
    return [run for run in runs if not run.trace_ids & gone]


def _goes_on(run: Run, wants: set[str], deleted: Mapping[str, datetime]) -> bool:
    """With what was said, under the same id if it names one."""
    started = run.row.get("started_at")
    links = {
        link
        for link in wants
        if link in deleted and (not started or datetime.fromisoformat(started) < deleted[link])
    }
    named = {link for link in wants if link.startswith(TALKS)}
    return bool(links - named) and (not named or bool(links & named))


def _rename_deleted(
    project: Project, runs: list[Run], stored: list[Trajectory], traces: dict[str, Trace]
) -> None:
    """The first run of a trace has the trace's name. If it was deleted, the first of the others
    cannot have it.
    """
    deleted = tombstones.deleted(project, Kind.RUN, {run.key for run in runs})
    if not deleted:
        return
    name_of = {key: row.external_id for row in stored for key in late.spans_of(row.metadata)}
    for run in runs:
        if run.key in deleted:
            again = next((name_of[key] for key in sorted(run.spans) if key in name_of), "")
            run.key = run.row["id"] = again or ":".join(min(run.spans))
            if any(traces[trace_id].is_partial for trace_id in run.trace_ids):
                late.mark(run)


def _postpone(project: Project, known: dict[str, Trace], runs: list[Run]) -> list[Run]:
    """Leaves traces that may belong together to the process that joins those of this project now.

    Takes them out of `known`; returns the runs of the others.
    """
    later = {trace_id for run in runs if run.links for trace_id in run.trace_ids}
    later |= {trace_id for trace_id, trace in known.items() if trace.is_joined}
    Trace.objects.filter(project=project, trace_id__in=later).update(due_at=Now() + POSTPONED)
    for trace_id in later:
        del known[trace_id]
    return [run for run in runs if not run.trace_ids & later]


def _related(project: Project, known: dict[str, Trace], runs: list[Run]) -> dict[str, Trace]:
    """The other traces of these runs: those that continue where one ends or end where one begins,
    and all of their runs.

    A locked one is being written to: it will be due after that, and find these.
    """
    everything = (
        Trace.objects.filter(project=project)
        .select_for_update(skip_locked=True)
        .order_by("-touched_at")
    )
    talks = everything.filter(touched_at__gte=timezone.now() - TALK)
    wanted = {link for run in runs for links in run.links.values() for link in links.wants}
    names = {name for trace in known.values() for name in trace.runs}
    found: dict[str, Trace] = {}
    seen: set[str] = set()
    while wanted or names:
        new: dict[str, Trace] = {}
        for rows, links in ((talks, wanted), (everything, {f"run:{name}" for name in names})):
            if links:
                rows = rows.filter(links__overlap=sorted(links)).exclude(
                    trace_id__in=[*known, *found]
                )[:RELATED]
                new |= {trace.trace_id: trace for trace in rows}
        found |= new
        seen |= names
        wanted, names = set(), {name for trace in new.values() for name in trace.runs} - seen
    return found


def _read(project: Project, traces: Iterable[str]) -> tuple[list[Span], list[LogRecord]]:
    spans: list[Span] = []
    logs: list[LogRecord] = []
    found = SpanBatch.objects.filter(project=project, trace_id__among=traces).order_by("pk")
    for data in found.values_list("data", flat=True).iterator(chunk_size=200):
        part = decode(contents.decompress(data))
        spans += part.spans
        logs += part.logs
    return spans, logs


def _stored(project: Project, names: set[str]) -> list[Trajectory]:
    keys = TrajectoryKey.objects.filter(project=project, external_id__among=names).values_list(
        "trajectory_id", flat=True
    )
    return with_content(list(Trajectory.objects.filter(pk__in=list(keys)))) if names else []


def _lasting(
    traces: Iterable[Trace], stored: list[Trajectory], at_hand: set[late.SpanKey]
) -> dict[str, Trajectory]:
    """The stored runs that know of spans that are gone, those of traces whose spans were removed
    once, and those that share a trace with them.

    The remaining spans of a trace show only part of it: all spans of two runs, but not what they
    have in common, look like one. Only runs that began after that are assembled again.
    """
    names = {row.external_id for row in stored if late.knows_more(row.metadata, at_hand)}
    began_late = {row.external_id for row in stored if late.began_late(row.metadata)}
    names |= {name for trace in traces if trace.is_partial for name in trace.runs} - began_late
    shared = [set(trace.runs) - began_late for trace in traces]
    while names and (more := set().union(*(runs for runs in shared if runs & names)) - names):
        names |= more
    return {row.external_id: row for row in stored if row.external_id in names}


def _late_runs(
    spans: list[Span],
    logs: list[LogRecord],
    traces: dict[str, Trace],
    lasting: dict[str, Trajectory],
    others: list[Trajectory],
) -> list[Run]:
    """The runs; if stored ones contain spans that are gone, new information is added to them."""
    known = {key for row in lasting.values() for key in late.spans_of(row.metadata)}
    new = [span for span in spans if (span.trace_id, span.span_id) not in known]
    rows = {name: _row_of(row) for name, row in lasting.items()}
    name_of = {key: row.external_id for row in others for key in late.spans_of(row.metadata)}
    runs: dict[str, Run] = {}
    for run in assemble(new, logs):
        parents = {
            (span.trace_id, span.parent_id)
            for span in new
            if (span.trace_id, span.span_id) in run.spans
        }
        names = [run.key, *(name for trace_id in run.trace_ids for name in traces[trace_id].runs)]
        name = next(
            (name for name in names if name in rows and late.belongs_to(run, parents, rows[name])),
            "",
        )
        if name:
            rows[name] = run.row = late.extended(rows[name], run.row)
            run.key = name
            run.spans |= runs[name].spans if name in runs else set()
        elif run.key in lasting:
            again = next((name_of[key] for key in run.spans if key in name_of), "")
            run.key = run.row["id"] = again or ":".join(min(run.spans))
            late.mark(run)
        runs[run.key] = run
    return list(runs.values())


def _row_of(row: Trajectory) -> dict[str, Any]:
    """A stored trajectory as it would be sent."""
    return {
        "id": row.external_id,
        "agent": {"name": row.agent_name, "version": row.agent_version},
        **{
            name: getattr(row, name)
            for name in ("model", "workload", "session_id", "user_id", "latency_ms", "tags")
        },
        **{
            name: at.isoformat()
            for name in ("started_at", "ended_at")
            if (at := getattr(row, name))
        },
        **{name: row.content[name] for name in ("messages", "tools", "interventions", "metadata")},
        "outcome": {
            name: getattr(row, f"outcome_{name}")
            for name in ("status", "reward", "label", "reason")
        },
        "usage": {name: value for name in USAGE if (value := getattr(row, name)) not in (None, "")},
    }


def _replace(project: Project, runs: list[Run], stored: list[Trajectory]) -> None:
    """Stores the runs. Feedback on stored ones moves with their spans; those that are no longer
    runs are removed.
    """
    name_of = {key: run.key for run in runs for key in run.spans}
    moved: dict[str, str] = {}
    for row in stored:
        heir = next((name_of[key] for key in late.spans_of(row.metadata) if key in name_of), "")
        if heir and heir != row.external_id:
            moved[row.external_id] = heir
    feedback.move(project, moved)
    scores.move(project, moved)
    now = {run.key for run in runs}
    if gone := [row for row in stored if row.external_id not in now]:
        store.remove(project, gone)
    done = store.ingest(
        project=project, rows=[Decoded(run.row) for run in runs], cause=Cause.ASSEMBLED
    )
    feedback.apply_to(project, set(moved.values()))
    for problem in done.rejected:
        log.error(
            "Run %s of project %s is not stored: %s",
            runs[problem["index"]].key,
            project,
            problem["error"],
        )


def _save(
    project: Project, traces: Collection[Trace], runs: list[Run], lasting: Iterable[str]
) -> None:
    """Notes what became of the traces. Those of one run are touched together, so that they are
    forgotten together.
    """
    of_trace: defaultdict[str, list[Run]] = defaultdict(list)
    for run in runs:
        for trace_id in run.trace_ids:
            of_trace[trace_id].append(run)
    for trace in traces:
        runs_now = [run.key for run in of_trace[trace.trace_id]]
        links = {
            link
            for run in of_trace[trace.trace_id]
            for link in run.links.get(trace.trace_id, Links()).has
        }
        trace.runs = list(
            dict.fromkeys([*(name for name in trace.runs if name in lasting), *runs_now])
        )
        trace.links = sorted(links | {f"run:{name}" for name in trace.runs})
    columns = (
        array(trace.trace_id for trace in traces),
        array(array(trace.runs) for trace in traces),
        array(array(trace.links) for trace in traces),
    )
    send(SAVE, [str(project.pk), *columns])


def forget_old(now: datetime | None = None) -> int:
    """Removes spans that are assembled and too old to be joined by others. Returns the number of
    batches.

    Their traces stay, to know late copies by, except those that are part of no run.
    """
    now = now or timezone.now()
    removed = 0
    while some := _forget_some(now - KEPT):
        removed += some
    Trace.objects.filter(forgotten=True, due_at=None, touched_at__lt=now - REMEMBERED).delete()
    tombstones.forget_links(now - KEPT)
    return removed


@transaction.atomic
def _forget_some(before: datetime) -> int:
    old = (
        Trace.objects.waiting()
        .filter(forgotten=False, due_at=None, touched_at__lt=before)
        .order_by("touched_at")
    )
    by_project: defaultdict[int, list[str]] = defaultdict(list)
    for trace in old.select_for_update(skip_locked=True)[:FORGOTTEN_AT_ONCE]:
        by_project[trace.project_id].append(trace.trace_id)
    removed = 0
    for project_id, names in by_project.items():
        removed += SpanBatch.objects.filter(project_id=project_id, trace_id__in=names).delete()[0]
        traces = Trace.objects.filter(project_id=project_id, trace_id__in=names)
        traces.filter(runs=[]).delete()
        traces.forget()
    return removed
