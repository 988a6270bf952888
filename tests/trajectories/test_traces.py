"""OTLP from the door to the trajectory: kept as it comes, assembled when it is quiet, joined by
what comes late.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from google.protobuf.json_format import ParseDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from apps.core.models import AuditEvent, Project, Role
from apps.trajectories import assembly, tasks, traces
from apps.trajectories.actions.store import find
from apps.trajectories.models import SpanBatch, Trace
from tests.factories import make_key, make_member, make_project

pytestmark = pytest.mark.django_db
TRACES, LOGS = "/v1/traces", "/v1/logs"
START = 1_790_000_000_000_000_000
MS = 1_000_000


def attributes(**given: Any) -> list[dict]:
    def value(given: Any) -> dict:
        return {"intValue": str(given)} if isinstance(given, int) else {"stringValue": given}

    return [
        {"key": name.replace("__", "."), "value": value(content)} for name, content in given.items()
    ]


def span(
    trace: int,
    number: int,
    parent: int = 0,
    *,
    at: int = 0,
    ms: int = 10,
    error: str = "",
    **given: Any,
) -> dict:
    made = {
        "traceId": f"{trace:032x}",
        "spanId": f"{number:016x}",
        "name": given.get("gen_ai__operation__name", "work"),
        "startTimeUnixNano": str(START + at * MS),
        "endTimeUnixNano": str(START + (at + ms) * MS),
        "attributes": attributes(**given),
    }
    if parent:
        made["parentSpanId"] = f"{parent:016x}"
    if error:
        made["status"] = {"code": 2, "message": error}
    return made


def text(role: str, content: str) -> dict:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def chat(
    trace: int, number: int, said: list[dict], answer: str, parent: int = 0, **given: Any
) -> dict:
    return span(
        trace,
        number,
        parent,
        gen_ai__operation__name="chat",
        gen_ai__request__model="m1",
        gen_ai__input__messages=json.dumps(said),
        gen_ai__output__messages=json.dumps([text("assistant", answer)]),
        **given,
    )


def agent_span(trace: int, number: int, **given: Any) -> dict:
    return span(
        trace,
        number,
        gen_ai__operation__name="invoke_agent",
        gen_ai__agent__name="helper",
        ms=100,
        **given,
    )


def body(*spans: dict) -> dict:
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes(service__name="svc")},
                "scopeSpans": [{"scope": {"name": "instrumentation"}, "spans": list(spans)}],
            }
        ]
    }


def send(agent: Client, *spans: dict, **extra: Any) -> Any:
    return agent.post(
        TRACES, json.dumps(body(*spans)).encode(), content_type="application/json", **extra
    )


def packed(*spans: dict) -> bytes:
    """The same as protobuf, where ids are bytes."""
    given = body(*[dict(span) for span in spans])
    for part in given["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if part.get(name):
                part[name] = base64.b64encode(bytes.fromhex(part[name])).decode()
    return ParseDict(given, ExportTraceServiceRequest()).SerializeToString()


def assembled(seconds: float = 2) -> int:
    traces.sort_some()
    return assembly.step(timezone.now() + timedelta(seconds=seconds))


def contents(project: Project) -> dict[str, list[str]]:
    return {
        row.external_id: [m["content"] for m in row.messages]
        for row in project.trajectories.order_by("pk")
    }


def trace_id(number: int) -> str:
    return f"{number:032x}"


def test_a_trace_becomes_a_trajectory(agent: Client, project: Project) -> None:
    answer = send(
        agent,
        agent_span(1, 1),
        chat(1, 2, [text("user", "Hi")], "Hello", 1, gen_ai__usage__input_tokens=7),
    )
    assert answer.status_code == 200 and answer.json() == {}
    assert not project.trajectories.exists() and traces.look().has_spans
    # Its root has come: it is not waited for.
    assert assembled(0) == 1 and not traces.look().has_spans
    row = project.trajectories.get()
    assert (row.external_id, row.agent_name, row.model, row.input_tokens) == (
        trace_id(1),
        "helper",
        "m1",
        7,
    )
    assert contents(project) == {trace_id(1): ["Hi", "Hello"]}
    assert find(project, trace_id(1)) == row


def test_protobuf_gzip_and_every_door(agent: Client, project: Project) -> None:
    def hello(number: int) -> bytes:
        return packed(chat(number, 1, [text("user", f"Hi {number}")], "Hello"))

    kind = "application/x-protobuf"
    answer = agent.post(TRACES, hello(1), content_type=kind)
    assert answer.status_code == 200 and answer["Content-Type"] == kind
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
    assert (
        agent.post(
            TRACES, gzip.compress(hello(2)), content_type=kind, HTTP_CONTENT_ENCODING="gzip"
        ).status_code
        == 200
    )
    basic = base64.b64encode(b"pk-public:" + make_key(project).encode()).decode()
    langfuse = Client(headers={"Authorization": f"Basic {basic}"})
    assert (
        langfuse.post("/api/public/otel/v1/traces", hello(3), content_type=kind).status_code == 200
    )
    assert assembled() == 3 and project.trajectories.count() == 3


@pytest.mark.parametrize(
    ("sent", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xff", "application/x-protobuf", 400),
        (b"{}", "text/plain", 415),
        (b"[]", "application/json", 400),
        (b"{}", "application/json", 200),
    ],
)
def test_what_is_no_otlp(agent: Client, sent: bytes, kind: str, status: int) -> None:
    answer = agent.post(TRACES, sent, content_type=kind)
    assert answer.status_code == status and (status == 200 or answer.json()["detail"])


def test_without_a_key() -> None:
    for headers in ({}, {"Authorization": "Basic !!"}, {"Authorization": "Bearer nonsense"}):
        assert (
            Client(headers=headers).post(TRACES, b"{}", content_type="application/json").status_code
            == 401
        )


def test_a_key_is_read_as_exporters_send_it_that_leave_their_variable_encoded(
    project: Project,
) -> None:
    """`OTEL_EXPORTER_OTLP_HEADERS=Authorization=Bearer%20fw_…`, which not all of them decode."""
    client = Client(headers={"Authorization": f"Bearer%20{make_key(project)}"})
    assert client.post(TRACES, b"{}", content_type="application/json").status_code == 200


def test_a_bad_span_is_told_and_its_neighbour_kept(agent: Client, project: Project) -> None:
    bad = chat(1, 2, [text("user", "Hi")], "Hello") | {"traceId": ""}
    answer = send(agent, bad, chat(2, 1, [text("user", "Hi")], "Hello"))
    assert (
        answer.json()["partialSuccess"]["rejectedSpans"] == "1"
        and answer.json()["partialSuccess"]["errorMessage"]
    )
    assert assembled() == 1


def test_a_body_that_gives_no_run_says_why(agent: Client) -> None:
    plain = chat(1, 2, [text("user", "Hi")], "Hello") | {"attributes": []}
    partial = send(agent, plain).json()["partialSuccess"]
    assert "rejectedSpans" not in partial and "No span of this request" in partial["errorMessage"]
    unnamed = chat(1, 2, [text("user", "Hi")], "Hello")
    unnamed["tags"] = unnamed.pop("attributes")
    assert (
        "No span of this request" in send(agent, unnamed).json()["partialSuccess"]["errorMessage"]
    )
    assert send(agent, chat(1, 3, [text("user", "Hi")], "Hello")).json() == {}
    assert agent.post("/v1/traces", b"{}", content_type="application/json").json() == {}


def test_each_trace_of_a_body_is_judged(agent: Client) -> None:
    heard = chat(1, 2, [text("user", "Hi")], "Hello")
    web = [chat(trace, 1, [], "") | {"attributes": attributes(db__system="x")} for trace in (2, 3)]
    waiting = web[1] | {"parentSpanId": f"{9:016x}"}  # its root is still to come
    said = "1 of the 3 traces of this request"
    assert said in send(agent, heard, web[0], waiting).json()["partialSuccess"]["errorMessage"]
    sent = agent.post(TRACES, packed(heard, web[0], waiting), content_type="application/x-protobuf")
    assert said.encode() in sent.content
    shaped = web[1] | {
        "attributes": attributes(
            x__span__type="llm", x__input='[{"role": "user", "content": "Hi"}]'
        )
    }
    sent = agent.post(TRACES, packed(heard, shaped), content_type="application/x-protobuf")
    assert sent.content == b"" and send(agent, shaped).json() == {}


def test_late_spans_join(agent: Client, project: Project) -> None:
    send(agent, chat(1, 2, [text("user", "Hi")], "Hello", 1))
    assembled()
    assert contents(project) == {trace_id(1): ["Hi", "Hello"]}
    said = [text("user", "Hi"), text("assistant", "Hello"), text("user", "More")]
    send(agent, agent_span(1, 1), chat(1, 3, said, "Done", 1, at=20))
    assembled()
    assert contents(project) == {trace_id(1): ["Hi", "Hello", "More", "Done"]}
    row = project.trajectories.get()
    assert row.agent_name == "helper" and row.revisions.get().content["message_count"] == 2


def test_late_spans_do_not_undo_what_people_said(agent: Client, project: Project) -> None:
    send(agent, chat(1, 2, [text("user", "Hi")], "Hello", 1))
    assembled()
    said = {"outcome": {"status": "success", "label": "solved"}, "comment": "Thanks"}
    url = f"/api/v1/trajectories/{trace_id(1)}/feedback/"
    assert agent.post(url, json.dumps(said), content_type="application/json").status_code == 200
    send(agent, agent_span(1, 1, error="it broke"))
    assembled()
    row = project.trajectories.get()
    assert (row.agent_name, row.outcome_status, row.outcome_label) == (
        "helper",
        "success",
        "solved",
    )
    assert row.interventions[0]["note"] == "Thanks" and "label:solved" in row.terms


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("backwards", [True, False])
def test_a_trace_a_call_is_one_run(
    agent: Client, project: Project, together: bool, backwards: bool
) -> None:
    """Where the instrumentation gives one root trace per model call, in whatever order they
    come.
    """
    talk = [text("user", "Hi")]
    sent = []
    for number in range(1, 4):
        sent.append(chat(number, number, list(talk), f"Answer {number}", at=number * 20))
        talk += [text("assistant", f"Answer {number}"), text("user", f"Question {number}")]
    sent.append(chat(9, 9, [text("user", "Another talk")], "Answer 9", at=15))
    for item in reversed(sent) if backwards else sent:
        send(agent, item)
        if not together:
            assembled()
    assembled()
    said = ["Hi", "Answer 1", "Question 1", "Answer 2", "Question 2", "Answer 3"]
    assert contents(project) == {trace_id(1): said, trace_id(9): ["Another talk", "Answer 9"]}


def test_what_people_said_of_a_part_is_said_of_the_whole(agent: Client, project: Project) -> None:
    talk = [text("user", "Hi"), text("assistant", "Answer 1"), text("user", "More")]
    send(agent, chat(2, 2, talk, "Answer 2", at=20))
    assembled()
    said = {"outcome": {"status": "failure", "label": "rude"}, "comment": "Not so"}
    url = f"/api/v1/trajectories/{trace_id(2)}/feedback/"
    assert agent.post(url, json.dumps(said), content_type="application/json").status_code == 200
    send(agent, chat(1, 1, talk[:1], "Answer 1"))
    assembled()
    row = project.trajectories.get()
    assert (row.external_id, row.outcome_status, row.outcome_label) == (
        trace_id(1),
        "failure",
        "rude",
    )
    assert row.interventions[0]["note"] == "Not so" and len(row.messages) == 4


def test_traces_of_other_projects_are_not_looked_at(agent: Client, project: Project) -> None:
    other = make_project()
    for owner in (project, other):
        traces.keep(project=owner)
        client = Client(headers={"Authorization": f"Bearer {make_key(owner)}"})
        send(client, chat(1, 1, [text("user", "Hi")], owner.slug))
    assert assembled() == 2
    assert contents(project) == {trace_id(1): ["Hi", project.slug]}
    assert contents(other) == {trace_id(1): ["Hi", other.slug]}


def test_an_error_inside_a_good_root_is_a_failure(agent: Client, project: Project) -> None:
    send(
        agent,
        agent_span(1, 1),
        chat(1, 2, [text("user", "Hi")], "", 1, error="the provider answered 500"),
    )
    assembled()
    row = project.trajectories.get()
    assert row.outcome_status == "failure" and "500" in row.outcome_reason


def test_spans_that_are_no_run_make_none(agent: Client, project: Project) -> None:
    send(agent, span(1, 1, http__method="GET"))
    assert assembled() == 1 and not project.trajectories.exists()


def test_old_spans_go(agent: Client, project: Project) -> None:
    send(agent, chat(1, 1, [text("user", "Hi")], "Hello"))
    later = timezone.now() + assembly.KEPT + timedelta(hours=1)
    assert assembly.step(later) == 1
    assert assembly.forget_old(later) == 1
    assert (
        not SpanBatch.objects.exists()
        and Trace.objects.get().forgotten
        and project.trajectories.count() == 1
    )


def test_old_spans_of_no_run_go_with_their_trace(agent: Client) -> None:
    send(agent, span(1, 1, http__method="GET"))
    assembled()
    assert assembly.forget_old(timezone.now() + assembly.KEPT + timedelta(hours=1)) == 1
    assert not Trace.objects.exists()


def broken_for(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = assembly._assemble

    def assemble(project: Project, found: list[Trace]) -> None:
        if trace_id(number) in [trace.trace_id for trace in found]:
            raise ValueError("no such \x00 thing")
        real(project, found)

    monkeypatch.setattr(assembly, "_assemble", assemble)


def test_a_trace_that_cannot_be_assembled_waits_for_a_person(
    agent: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(
        agent, chat(1, 1, [text("user", "Hi")], "Hello"), chat(2, 2, [text("user", "Ho")], "Hello")
    )
    with monkeypatch.context() as patch:
        broken_for(patch, 1)
        assert assembled() == 2
    assert list(contents(project)) == [trace_id(2)] and not traces.look().has_spans
    long_after = timezone.now() + assembly.KEPT + timedelta(hours=1)
    assembly.forget_old(long_after)
    assert SpanBatch.objects.get().trace_id == trace_id(1), (
        "the spans of the good one go, those set aside stay"
    )

    viewer, member, stranger = (
        client_of(project, role) for role in (Role.VIEWER, Role.ENGINEER, None)
    )
    page = viewer.get(reverse("trajectories:arrivals", args=[project.slug])).content.decode()
    assert (
        "ValueError: no such \ufffd thing" in page
        and trace_id(1) in page
        and "<button>Retry" not in page
    )
    assert (
        b"1 batch or trace" in viewer.get(reverse("trajectories:list", args=[project.slug])).content
    )
    other = make_project()
    elsewhere = client_of(other, Role.VIEWER).get(
        reverse("trajectories:arrivals", args=[other.slug])
    )
    assert trace_id(1) not in elsewhere.content.decode()
    again = reverse("trajectories:trace_retry", args=[project.slug, trace_id(1)])
    assert viewer.post(again).status_code == 403 and stranger.post(again).status_code == 404
    assert member.post(again).status_code == 302 and assembled() == 1
    assert (
        set(contents(project)) == {trace_id(1), trace_id(2)}
        and not Trace.objects.set_aside().exists()
    )
    assert (
        AuditEvent.objects.filter(action="trace.retried").exists()
        and member.post(again).status_code == 404
    )


def test_a_trace_set_aside_is_discarded_with_its_spans(
    agent: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(agent, chat(1, 1, [text("user", "Hi")], "Hello"))
    broken_for(monkeypatch, 1)
    assembled()
    url = reverse("trajectories:trace_discard", args=[project.slug, trace_id(1)])
    assert client_of(project, Role.ENGINEER).post(url).status_code == 302
    assert not SpanBatch.objects.exists() and not Trace.objects.set_aside().exists()
    assert AuditEvent.objects.filter(action="trace.discarded").exists()


def test_more_spans_bring_back_what_was_set_aside(
    agent: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(agent, chat(1, 1, [text("user", "Hi")], "Hello"))
    with monkeypatch.context() as patch:
        broken_for(patch, 1)
        assembled()
    send(
        agent,
        chat(
            1,
            2,
            [text("user", "Hi"), text("assistant", "Hello"), text("user", "And?")],
            "So.",
            at=50,
        ),
    )
    assert assembled() == 1 and len(contents(project)[trace_id(1)]) == 4
    assert not Trace.objects.set_aside().exists()


def client_of(project: Project, role: Role | None) -> Client:
    client = Client()
    client.force_login(make_member(project, role) if role else make_member(make_project()))
    return client


def test_a_trace_whose_root_has_not_come_is_waited_for(agent: Client, project: Project) -> None:
    send(agent, chat(1, 2, [text("user", "Hi")], "Hello", 1))
    assert assembled(0) == 0 and traces.look().has_spans
    send(agent, agent_span(1, 1))
    assert assembled(0) == 1 and project.trajectories.get().agent_name == "helper"


def test_metrics_are_read_off(agent: Client) -> None:
    assert (
        agent.post("/v1/metrics", b"\n\x00", content_type="application/x-protobuf").status_code
        == 200
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    noise=st.binary(min_size=1, max_size=200),
    kind=st.sampled_from(["application/x-protobuf", "application/json"]),
)
def test_no_body_breaks_the_door(agent: Client, noise: bytes, kind: str) -> None:
    with transaction.atomic():
        assert agent.post(TRACES, noise, content_type=kind).status_code in (200, 400)
        assert agent.post(LOGS, noise, content_type=kind).status_code in (200, 400)


@pytest.mark.proof
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_valid_body_breaks_the_assembly(
    agent: Client, project: Project, data: st.DataObject
) -> None:
    names = st.sampled_from(
        [
            "gen_ai__operation__name",
            "gen_ai__input__messages",
            "openinference__span__kind",
            "gen_ai__prompt__0__role",
        ]
    )
    values = st.text(max_size=20) | st.sampled_from(
        ["chat", "LLM", "[]", '[{"role": 1}]', "{", "invoke_agent"]
    )
    spans = [
        span(
            data.draw(st.integers(1, 3)),
            data.draw(st.integers(1, 6)),
            data.draw(st.integers(0, 6)),
            at=data.draw(st.integers(0, 50)),
            **data.draw(st.dictionaries(names, values, max_size=3)),
        )
        for _ in range(data.draw(st.integers(1, 5)))
    ]
    assert send(agent, *spans).status_code == 200
    assembled()
    assert not traces.look().has_spans


@pytest.mark.parametrize(("is_late", "digested"), [(False, 0), (True, 5)])
def test_while_spans_wait_the_digest_waits_and_where_it_is_late_gets_a_fifth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, is_late: bool, digested: int
) -> None:
    done: list[str] = []

    def work(name: str, times: int) -> Callable[[], int]:
        left = iter(range(times))

        def step() -> int:
            if next(left, None) is None:
                return 0
            done.append(name)
            return 1

        return step

    monkeypatch.setattr(
        tasks,
        "time",
        SimpleNamespace(monotonic=lambda: float(len(done)), sleep=lambda _: done.append("")),
    )
    monkeypatch.setattr(tasks.lags, "is_late", lambda name: is_late)
    monkeypatch.setattr(tasks.traces, "sort_some", lambda: 0)
    monkeypatch.setattr(tasks.traces, "look", lambda: traces.Work(is_due=False, has_spans=False))
    monkeypatch.setattr(tasks.assembly, "step", work("assembled", 20))
    monkeypatch.setattr(tasks.digesting, "step", work("digested", 20))
    tasks.digest()
    last = len(done) - done[::-1].index("assembled")
    assert done.count("digested") == 20
    assert done[:last].count("digested") == digested


def test_where_work_never_ceases_what_waits_in_the_queue_is_taken_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, sent = itertools.count(), list[str]()
    clock = SimpleNamespace(monotonic=lambda: float(next(steps)), sleep=lambda _: None)
    monkeypatch.setattr(tasks, "time", clock)
    monkeypatch.setattr(tasks.lags, "give_way", lambda *names: None)
    monkeypatch.setattr(tasks.traces, "sort_some", lambda: 1)
    monkeypatch.setattr(tasks.assembly, "step", lambda: 1)
    monkeypatch.setattr(tasks.digesting, "step", lambda: 1)
    monkeypatch.setattr(tasks.outbox, "post", lambda task, **_: sent.append(task))
    tasks.digest()
    assert next(steps) < 2 * tasks.LONGEST_S
    assert sent == ["trajectories.digest"]
