"""Several processes assemble and digest at once: each takes what the others have not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from apps.core.locks import ProjectLock
from apps.core.models import Project
from apps.trajectories import assembly, digest, traces
from apps.trajectories.actions import store
from apps.trajectories.models import Arrival, SearchText, Trace
from apps.trajectories.otlp import decode_traces
from tests.factories import make_project, row
from tests.trajectories.test_traces import agent_span, chat, contents, packed, text, trace_id

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def another_process(statement: str, *values: Any) -> Iterator[None]:
    """A transaction of another connection that has done this and is not over."""
    parameters = connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}
    with psycopg.connect(**parameters) as other:
        other.execute(statement, values)
        yield
        other.rollback()


def keep(project: Project, *spans: dict) -> None:
    traces.keep(project=project, spans=decode_traces(packed(*spans), json=False).items)


def run_of(trace: int) -> list[dict]:
    return [agent_span(trace, 1), chat(trace, 2, [text("user", f"Hi {trace}")], "Hello", 1)]


def soon() -> int:
    return assembly.step(timezone.now() + timedelta(seconds=5))


def test_a_trace_that_another_process_has_is_passed_over(project: Project) -> None:
    keep(project, *run_of(1), *run_of(2))
    held = "SELECT 1 FROM trajectories_trace WHERE trace_id = %s FOR UPDATE"
    with another_process(held, trace_id(1)):
        assert soon() == 1 and list(contents(project)) == [trace_id(2)]
    assert soon() == 1 and len(contents(project)) == 2


def test_traces_that_may_belong_together_are_left_to_the_process_that_joins_them(
    project: Project,
) -> None:
    keep(project, chat(3, 1, [text("user", "Alone")], "Answer"), *run_of(1))
    with another_process(
        "SELECT pg_advisory_xact_lock(%s, %s)", int(ProjectLock.STITCHING), project.pk
    ):
        soon()
        assert list(contents(project)) == [trace_id(1)]
        assert Trace.objects.get(trace_id=trace_id(3)).due_at
    soon()
    assert set(contents(project)) == {trace_id(1), trace_id(3)} and not traces.look().has_spans


def test_a_trace_that_cannot_be_assembled_stops_no_other(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(project, *run_of(1), *run_of(2))
    assemble = assembly.assemble

    def broken(spans: list, logs: list) -> list:
        if any(span.trace_id == trace_id(1) for span in spans):
            raise ValueError("a fault of ours")
        return assemble(spans, logs)

    monkeypatch.setattr(assembly, "assemble", broken)
    assert soon() == 2 and list(contents(project)) == [trace_id(2)] and soon() == 0
    monkeypatch.undo()
    keep(project, chat(1, 9, [text("user", "Hi 1")], "Again", 1, at=50))  # more of it comes
    assert soon() == 1 and len(contents(project)) == 2


def test_a_project_that_is_counted_anew_is_digested_later(project: Project) -> None:
    other = make_project()
    for owner in (project, other):
        store.ingest(project=owner, rows=[row(name="r")])
    with another_process(
        "SELECT pg_advisory_xact_lock(%s, %s)", int(ProjectLock.DIGEST), project.pk
    ):
        assert digest.run() == 1
        assert [arrival.project_id for arrival in Arrival.objects.all()] == [project.pk]
    assert digest.run() == 1


SHARED = "SELECT pg_advisory_xact_lock_shared(%s, %s)"


def test_new_runs_of_a_project_are_digested_by_several_processes(project: Project) -> None:
    for name in ("a", "b"):
        store.ingest(project=project, rows=[row(name=name)])
    theirs, mine = Arrival.objects.order_by("pk")
    held = "SELECT 1 FROM trajectories_arrival WHERE id = %s FOR UPDATE"
    with (
        another_process(SHARED, int(ProjectLock.DIGEST), project.pk),
        another_process(held, theirs.pk),
    ):
        assert digest.run() == 1
        assert SearchText.objects.get().trajectory_id == mine.trajectories[0]
    assert digest.run() == 1 and SearchText.objects.count() == 2


def test_a_changed_run_is_digested_after_those_before_it_and_before_those_after_it(
    project: Project,
) -> None:
    store.ingest(project=project, rows=[row(name="a")])
    digest.run()
    store.ingest(project=project, rows=[row(name="before")])
    store.ingest(project=project, rows=[row("a", "Open it again.")])
    store.ingest(project=project, rows=[row(name="after")])
    with another_process(SHARED, int(ProjectLock.DIGEST), project.pk):
        assert digest.run() == 1  # that before it
        assert Arrival.objects.count() == 2
    assert digest.run() == 2
