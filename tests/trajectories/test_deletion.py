"""A deleted run stays deleted, whatever of it comes late, and what else is sent is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.utils import timezone

from apps.core.models import Project
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure
from apps.notifications.models import Notification
from apps.teamwork.actions import add_comment
from apps.teamwork.models import Comment
from apps.teamwork.targets import kind_named
from apps.trajectories import digest
from apps.trajectories.actions import bulk, deletions
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.contents import decompress
from apps.trajectories.models import (
    Facet,
    Feedback,
    SearchText,
    SpanBatch,
    Tombstone,
    Trace,
    Trajectory,
    TrajectoryKey,
)
from apps.trajectories.retention import enforce, set_retention
from tests.factories import admin_of, make_failed, make_member, make_project, make_trajectory, row
from tests.trajectories.test_late_spans import forget, whole_run
from tests.trajectories.test_traces import (
    agent_span,
    assembled,
    chat,
    contents,
    send,
    span,
    text,
    trace_id,
)

pytestmark = pytest.mark.django_db


def single(project: Project, name: str) -> None:
    deletions.delete(trajectory=find(project, name))


def in_bulk(project: Project, name: str) -> None:
    bulk.delete(project=project, ids=[find(project, name).pk], by=None)


def by_retention(project: Project, name: str) -> None:
    set_retention(project=project, days=1, by=admin_of(project))
    enforce(timezone.now() + timedelta(days=365))


WAYS = pytest.mark.parametrize("delete", [single, in_bulk, by_retention])


def kept_of(project: Project, words: str) -> list[str]:
    """The tables of this database in which the words are, as text or inside packed columns of
    traces.
    """
    places = [
        f"batch {batch.pk}"
        for batch in SpanBatch.objects.all()
        if words.encode() in decompress(batch.data)
    ]
    with connection.cursor() as cursor:
        for model in (Trajectory, TrajectoryKey, Feedback, Trace, Tombstone, SearchText):
            table = model._meta.db_table
            cursor.execute(
                f"SELECT count(*) FROM {table} AS it WHERE it::text ILIKE %s", [f"%{words}%"]
            )
            places += [table] if cursor.fetchone()[0] else []
    return places


LATE = ["one span again", "a new span", "the whole trace", "a log"]
CASES = list(product([single, in_bulk, by_retention], ["fresh", "forgotten"], LATE))


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(("delete", "age", "late"), CASES)
def test_a_deleted_trace_stays_deleted(
    agent: Client, project: Project, delete: Callable, age: str, late: str
) -> None:
    spans = whole_run()
    send(agent, *spans)
    assembled()
    digest.run()
    assert contents(project) and SearchText.objects.exists()
    if age == "forgotten":
        forget()
    delete(project, trace_id(1))
    assert not SpanBatch.objects.exists() and not Trace.objects.exists()
    if late == "a log":
        record = {"traceId": trace_id(1), "spanId": f"{4:016x}", "body": {"stringValue": "Case 1"}}
        sent = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        assert agent.post("/v1/logs", sent, content_type="application/json").status_code == 200
    else:
        new = chat(1, 9, [text("user", "Case 1")], "Late", 1, at=60)
        send(
            agent,
            *{"one span again": spans[3:], "a new span": [new], "the whole trace": [*spans, new]}[
                late
            ],
        )
    assembled()
    digest.run()
    assert not project.trajectories.exists() and not Trace.objects.exists()
    assert not kept_of(project, "Case") and not kept_of(project, trace_id(1))


def test_other_runs_of_its_trace_stay_and_go_on(agent: Client, project: Project) -> None:
    """A batch job: one root, below it an agent for each case."""

    def case(number: int) -> list[dict]:
        said = [text("user", f"Case {number}")]
        return [
            agent_span(1, number, parent=99, at=number),
            chat(1, number + 1, said, f"Answer {number}", number, at=number + 1),
        ]

    send(agent, *case(10), *case(20), span(1, 99, ms=900_000))
    assembled()
    first, second = (item.external_id for item in project.trajectories.order_by("pk"))
    single(project, first)
    assert not kept_of(project, "Case 10") and kept_of(project, "Case 20")
    late = chat(
        1,
        12,
        [text("user", "Case 10"), text("assistant", "Answer 10"), text("user", "More")],
        "No",
        11,
        at=30,
    )
    send(agent, late, *case(10))
    assembled()
    assert contents(project) == {second: ["Case 20", "Answer 20"]} and not kept_of(
        project, "Case 10"
    )
    known = [text("user", "Case 20"), text("assistant", "Answer 20"), text("user", "Go on")]
    for later in ([chat(1, 22, known, "Went on", 20, at=40)], case(30)):
        send(agent, *later)
        assembled()
    assert sorted(contents(project).values()) == [
        ["Case 20", "Answer 20", "Go on", "Went on"],
        ["Case 30", "Answer 30"],
    ]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("ids", [{}, {"gen_ai__conversation__id": "t1"}])
def test_a_late_trace_of_a_deleted_conversation_is_part_of_it(
    agent: Client, project: Project, ids: dict[str, str]
) -> None:
    talk: list[dict] = []
    for number in (1, 2, 3):
        talk += [text("user", f"Question {number}"), text("assistant", f"Answer {number}")]

    def turn(trace: int, number: int, at: int, **ids: str) -> dict:
        return chat(trace, 1, talk[: 2 * number - 1], f"Answer {number}", at=at, **ids)

    send(agent, turn(1, 1, 0, **ids), turn(2, 2, 20, **ids))
    assembled()
    assert list(contents(project)) == [trace_id(1)]
    single(project, trace_id(1))
    assert not kept_of(project, "t1") and not kept_of(project, trace_id(2))
    next_year = 365 * 24 * 3_600_000
    send(agent, turn(3, 3, 40, **ids))
    send(agent, turn(4, 3, 40, gen_ai__conversation__id="t2"), turn(5, 3, next_year, **ids))
    assembled()
    assert sorted(contents(project)) == [
        trace_id(4),
        trace_id(5),
    ]  # another conversation, and what began later


@pytest.mark.more(rows=1)
@WAYS
def test_a_resend_is_refused_until_it_is_restored(
    agent: Client, project: Project, tmp_path: Any, delete: Callable
) -> None:
    sent = row("bob-1", user_id="bob", started_at="2026-01-01T00:00:00Z")
    agent.post("/api/v1/trajectories/", sent, content_type="application/json")
    delete(project, "bob-1")
    assert not kept_of(project, "bob")
    answer = agent.post("/api/v1/trajectories/", sent, content_type="application/json")
    assert (
        answer.status_code == 400
        and answer.json()["path"] == "id"
        and "was deleted on" in answer.json()["error"]
    )
    batch = [row("bob-1", model="changed"), row("ann-1"), row("bob-1")]
    answer = agent.post(
        "/api/v1/trajectories/batch/", batch, content_type="application/json"
    ).json()
    assert (answer["accepted"], [item["index"] for item in answer["rejected"]]) == (1, [0, 2])
    told = agent.post(
        "/api/v1/trajectories/bob-1/feedback/", {"comment": "Bad"}, content_type="application/json"
    )
    assert told.status_code == 410 and "was deleted" in told.json()["detail"]
    assert [item.external_id for item in project.trajectories.all()] == ["ann-1"] and not kept_of(
        project, "bob"
    )
    other = make_project()
    assert ingest(project=other, rows=[sent]).accepted == 1
    path = tmp_path / "again.jsonl"
    path.write_text(json.dumps(sent))
    call_command("import_trajectories", str(path), project=project.slug, restore=True)
    assert find(project, "bob-1")
    assert ingest(project=project, rows=[row("bob-1", model="changed")]).updated == 1


def test_a_tombstone_outlives_a_change_of_the_secret_key(project: Project) -> None:
    ingest(project=project, rows=[row("bob-1")])
    single(project, "bob-1")
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=[configured.SECRET_KEY]):
        assert ingest(project=project, rows=[row("bob-1")]).deleted == 1


def test_words_that_the_digest_wrote_too_late_go(project: Project) -> None:
    ingest(project=project, rows=[row("bob-1")])
    digest.run()
    words = SearchText.objects.get()
    single(project, "bob-1")
    words.save(force_insert=True)
    digest.run()
    assert not SearchText.objects.exists()


@pytest.mark.more(rows=1)
@WAYS
def test_what_people_said_of_it_goes_with_it(project: Project, delete: Callable) -> None:
    author, reader = admin_of(project), make_member(project)
    run = make_failed(project, name="bob-1", tags=["bob-tag"])
    classify_project(project=project)
    other = make_trajectory(project, name="ann-1")
    for kind, target in (
        ("trajectory", run),
        ("failure", Failure.objects.get(trajectory=run)),
        ("trajectory", other),
    ):
        text = f"@{reader} On {kind} {target.pk}"
        found = kind_named(kind)
        add_comment(project=project, kind=found, target=target, text=text, by=author)
    digest.run()
    assert Comment.objects.count() == 3 == Notification.objects.exclude(excerpt="").count()
    delete(project, "bob-1")
    digest.run()
    stay = [] if delete is by_retention else [str(other.pk)]
    assert [row.target_id for row in Comment.objects.all()] == stay
    assert Notification.objects.exclude(excerpt="").count() == len(stay)
    assert not Facet.objects.filter(value="bob-tag").exists()
