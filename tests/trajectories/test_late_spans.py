"""Spans that come late, twice, or when the others of their run are long forgotten: nothing that is
stored gets less.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from apps.core.models import Project
from apps.trajectories import assembly, traces
from apps.trajectories.actions.store import find
from apps.trajectories.models import SpanBatch, Trace
from tests.amounts import amount
from tests.factories import make_key, make_project
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
HOUR = timedelta(hours=1)


def called(call: str) -> dict:
    return {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": call, "name": "look", "arguments": "{}"}],
    }


def replied(call: str, found: str) -> dict:
    return {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": call, "response": found}],
    }


def tool(trace: int, number: int, parent: int, call: str = "c1", **given: Any) -> dict:
    return span(
        trace,
        number,
        parent,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="look",
        gen_ai__tool__call__id=call,
        gen_ai__tool__call__result="found",
        **given,
    )


def whole_run(trace: int = 1) -> list[dict]:
    """An agent, a call that wants a tool, the tool, and the call that answers: four messages."""
    asked = text("user", f"Case {trace}")
    first = chat(trace, 2, [asked], "", 1, at=10)
    first["attributes"][-1]["value"]["stringValue"] = json.dumps([called("c1")])
    last = chat(trace, 4, [asked, called("c1"), replied("c1", "found")], "Done", 1, at=40)
    return [agent_span(trace, 1), first, tool(trace, 3, 1, at=20), last]


def forget() -> None:
    assert assembly.forget_old(timezone.now() + assembly.KEPT + HOUR)
    assert not SpanBatch.objects.exists()


SAID = ["Case 1", None, "found", "Done"]


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("number", range(4))
def test_a_span_that_is_sent_again_after_the_others_are_gone_changes_nothing(
    agent: Client, project: Project, number: int
) -> None:
    spans = whole_run()
    send(agent, *spans)
    assembled()
    before = find(project, trace_id(1))
    assert before and contents(project) == {trace_id(1): SAID}
    forget()
    send(agent, spans[number])
    assembled()
    assert contents(project) == {trace_id(1): SAID}
    row = find(project, trace_id(1))
    assert row and (row.content, row.content_digest) == (before.content, before.content_digest)
    assert not row.revisions.exists()


def test_a_new_span_of_a_forgotten_run_is_added_to_it(agent: Client, project: Project) -> None:
    send(agent, *whole_run())
    assembled()
    forget()
    for _ in range(2):  # and once only
        send(agent, tool(1, 9, 1, "c9", at=50_000))
        assembled()
    row = find(project, trace_id(1))
    assert row and contents(project) == {trace_id(1): SAID}
    assert [step["span_id"][-1] for step in row.metadata["steps"]] == ["1", "2", "3", "4", "9"]
    assert (row.metadata["span_count"], row.metadata["late_spans"]) == (5, 1)
    assert row.metadata["steps"][-1]["start_ms"] == 50_000 and row.latency_ms == 50_010
    assert row.revisions.count() == 1


def test_a_conversation_goes_on_after_its_spans_are_gone(agent: Client, project: Project) -> None:
    """As where a person approves after a week."""
    send(agent, *whole_run())
    assembled()
    forget()
    known = [
        text("user", "Case 1"),
        called("c1"),
        replied("c1", "found"),
        text("assistant", "Done"),
    ]
    send(
        agent,
        chat(
            1,
            9,
            [*known, text("user", "Go on")],
            "Went on",
            1,
            at=90_000,
            gen_ai__usage__input_tokens=5,
        ),
    )
    assembled()
    assert contents(project) == {trace_id(1): [*SAID, "Go on", "Went on"]}
    row = find(project, trace_id(1))
    assert row and row.input_tokens == 5 and row.revisions.get().content["message_count"] == 4


def test_another_run_in_a_forgotten_trace_is_one_of_its_own(
    agent: Client, project: Project
) -> None:
    send(
        agent,
        span(1, 8, ms=900_000),
        *(
            {**item, "parentSpanId": f"{8:016x}"} if "parentSpanId" not in item else item
            for item in whole_run()
        ),
    )
    assembled()
    assert contents(project) == {trace_id(1): SAID}
    forget()
    for later in (
        chat(1, 21, [text("user", "Other")], "Answer", 20, at=60_010),
        agent_span(1, 20, at=60_000),
    ):
        send(agent, later)
        assembled()
    said = contents(project)
    assert said.pop(trace_id(1)) == SAID
    assert list(said.values()) == [["Other", "Answer"]]


def test_a_span_of_any_trace_of_a_forgotten_run_is_known(agent: Client, project: Project) -> None:
    """Where each model call has a trace of its own."""
    talk = [text("user", "Hi"), text("assistant", "Answer 1"), text("user", "More")]
    calls = [chat(1, 1, talk[:1], "Answer 1"), chat(2, 2, talk, "Answer 2", at=20)]
    send(agent, *calls)
    assembled()
    forget()
    send(agent, calls[1])
    assembled()
    assert contents(project) == {trace_id(1): ["Hi", "Answer 1", "More", "Answer 2"]}


@pytest.mark.proof
def test_a_run_that_takes_longer_than_spans_are_kept_stays_whole(
    agent: Client, project: Project
) -> None:
    talk: list[dict] = []
    said: list[str] = []
    for number in range(1, 8):
        talk.append(text("user", f"Question {number}"))
        send(agent, chat(number, number, list(talk), f"Answer {number}", at=number * 20))
        assembled()
        talk.append(text("assistant", f"Answer {number}"))
        said += [f"Question {number}", f"Answer {number}"]
        assert contents(project) == {trace_id(1): said}
        for trace in Trace.objects.all():  # most of a day goes by
            Trace.objects.filter(project=project, trace_id=trace.trace_id).update(
                touched_at=trace.touched_at - 20 * HOUR
            )
        assembly.forget_old()


def test_what_was_sent_as_a_row_is_not_replaced_by_spans_that_know_less(
    agent: Client, project: Project
) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "All of it"}]
    row = {"id": trace_id(1), "messages": messages}
    assert (
        agent.post(
            "/api/v1/trajectories/", json.dumps(row), content_type="application/json"
        ).status_code
        == 201
    )
    send(agent, agent_span(1, 1), tool(1, 2, 1))
    assembled()
    assert contents(project) == {trace_id(1): ["Hi", "All of it"]}
    assert len(project.trajectories.get().metadata["steps"]) == 2


def test_what_people_said_follows_the_spans_it_was_said_of(agent: Client, project: Project) -> None:
    """The first run of a trace has the trace's id: one that began earlier and comes later takes it
    over.
    """
    late = {"parentSpanId": f"{9:016x}"}
    send(
        agent,
        span(1, 9, ms=900),
        agent_span(1, 2, at=500) | late,
        chat(1, 3, [text("user", "B")], "b", 2, at=510),
    )
    assembled()
    url = f"/api/v1/trajectories/{trace_id(1)}/feedback/"
    said = {"outcome": {"status": "failure", "label": "rude"}}
    assert agent.post(url, json.dumps(said), content_type="application/json").status_code == 200
    send(agent, agent_span(1, 4, at=10) | late, chat(1, 5, [text("user", "A")], "a", 4, at=20))
    assembled()
    assert contents(project) == {trace_id(1): ["A", "a"], f"{trace_id(1)}:{2:016x}": ["B", "b"]}
    assert {
        row.messages[0]["content"]: row.outcome_label for row in project.trajectories.all()
    } == {
        "A": "",
        "B": "rude",
    }


def everything() -> list[dict]:
    """Runs of all kinds: an agent's, two below a batch job's root, and one of three traces with one
    call each.
    """
    batch = [span(2, 1, ms=5000)]
    for number in (10, 20):
        batch.append(agent_span(2, number, at=number * 20) | {"parentSpanId": f"{1:016x}"})
        batch.append(
            chat(
                2, number + 1, [text("user", f"Item {number}")], "Done", number, at=number * 20 + 5
            )
        )
    talk: list[dict] = []
    calls = []
    for number in (3, 4, 5):
        talk = [*talk, text("user", f"Q{number}")]
        calls.append(chat(number, 1, talk, f"A{number}", at=number * 100))
        talk = [*talk, text("assistant", f"A{number}")]
    return [*whole_run(), *batch, *calls]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "portions", [[[8], [5, 7, 6]], [[5, 6, 7, 8]], [[7], [8, 5], [6]]], ids=str
)
def test_copies_of_two_runs_without_their_root_change_nothing(
    agent: Client, project: Project, portions: list[list[int]]
) -> None:
    spans = everything()
    send(agent, *spans)
    assembled()
    before = contents(project)
    assembly.forget_old(timezone.now() + assembly.KEPT + HOUR)
    for portion in portions:
        send(agent, *(spans[number] for number in portion))
        assembled()
    assert contents(project) == before and not any(
        row.revisions.exists() for row in project.trajectories.all()
    )


@pytest.mark.more
@settings(
    max_examples=amount(5, 15),
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # to shrink what goes through the database takes minutes
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_arrival_duplicates_and_late_copies_change_nothing(
    agent: Client, project: Project, data: st.DataObject
) -> None:
    """In whatever order, portions and repetition spans come, and whatever is sent again when they
    are forgotten.
    """
    project.trajectories.all().delete()
    owner = make_project()
    client = Client(headers={"Authorization": f"Bearer {make_key(owner)}"})
    spans = everything()
    numbers = st.integers(0, len(spans) - 1)
    again = data.draw(st.lists(numbers, max_size=5), label="sent twice")
    waiting = data.draw(st.permutations([*range(len(spans)), *again]), label="order")
    while waiting:
        size = data.draw(st.integers(1, len(waiting)), label="portion")
        portion, waiting = waiting[:size], waiting[size:]
        send(client, *(spans[number] for number in portion))
        if data.draw(st.booleans(), label="assembled"):
            assembled()
    assembled()
    assert contents(owner) == {
        trace_id(1): SAID,
        trace_id(2): ["Item 10", "Done"],
        f"{trace_id(2)}:{20:016x}": ["Item 20", "Done"],
        trace_id(3): ["Q3", "A3", "Q4", "A4", "Q5", "A5"],
    }
    before = {
        row.external_id: (row.content_digest, row.revisions.count())
        for row in owner.trajectories.all()
    }
    assembly.forget_old(timezone.now() + assembly.KEPT + HOUR)
    for late in data.draw(
        st.lists(st.lists(numbers, min_size=1, max_size=4), max_size=3), label="late"
    ):
        send(client, *(spans[number] for number in late))
        assembled()
    after = {
        row.external_id: (row.content_digest, row.revisions.count())
        for row in owner.trajectories.all()
    }
    assert after == before and not traces.look().has_spans
