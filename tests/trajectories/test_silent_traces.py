"""What came and says too little: traces without a run, and what runs lack by instrumentation."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project, Role
from apps.trajectories import assembly, traces
from apps.trajectories.instrumentation import content_hint, scope_of, tools_hint
from apps.trajectories.models import Trace
from apps.trajectories.notices import notices_of_latest
from apps.trajectories.otlp import Scope, Span
from apps.trajectories.silent import silent_traces
from tests.factories import key_headers, make_project, make_trajectory
from tests.trajectories.test_otlp_assemble import bot, model, span, user
from tests.trajectories.test_traces import client_of

pytestmark = pytest.mark.django_db


def sent(project: Project, *spans: Span) -> None:
    traces.keep(project=project, spans=spans)
    Trace.objects.update(due_at=timezone.now())
    while assembly.step():
        pass


@pytest.fixture
def project() -> Project:
    made = make_project()
    shop = Scope("acme.shop", "2.1")
    sent(
        made,
        model(1, 0, [user("Hi")], [bot("Ho")], trace=1),
        span(1, 0, trace=2, name="<b>GET</b> /cart", scope=shop),
        span(2, 0.1, 1, trace=2, name="SELECT", scope=shop),
    )
    return made


def test_why_a_trace_gave_no_run(project: Project) -> None:
    (found,) = silent_traces(project)
    assert (found.trace_id, found.spans, found.scopes) == (f"{2:032x}", 2, ["acme.shop 2.1"])
    assert "“<b>GET</b> /cart”, “SELECT”" in found.why
    sent(project, span(1, 0, trace=3, name="step", attributes={"traceloop.span.kind": "task"}))
    project.trajectories.all().delete()
    Trace.objects.filter(trace_id=f"{1:032x}").update(runs=[])
    why = {one.trace_id: one.why for one in silent_traces(project)}
    assert "was called: “step”" in why[f"{3:032x}"] and "was deleted" in why[f"{1:032x}"]
    assert silent_traces(make_project()) == []
    Trace.objects.update(touched_at=timezone.now() - timedelta(days=4))
    assert silent_traces(project) == []


def test_the_page_and_the_api_say_it(project: Project, client: Client) -> None:
    page = client_of(project, Role.VIEWER).get(
        reverse("trajectories:arrivals", args=[project.slug])
    )
    html = page.content.decode()
    assert (
        f"{2:032x}" in html and "&lt;b&gt;GET&lt;/b&gt; /cart" in html and "acme.shop 2.1" in html
    )
    answer = client.get(reverse("api:traces_without_run"), **key_headers(project))
    (row,) = answer.json()["results"]
    assert row["why"] == silent_traces(project)[0].why
    sent(project, span(3, 0.2, 1, trace=2, attributes={"gen_ai.operation.name": "chat"}))
    assert silent_traces(project) == [] and project.trajectories.count() == 2


@pytest.mark.parametrize(
    ("metadata", "hint"),
    [
        ({"scope": ["openinference.instrumentation.openai 0.1"]}, "OPENINFERENCE_HIDE_INPUTS"),
        ({"scope": ["opentelemetry.instrumentation.openai_v2"]}, "OTEL_INSTRUMENTATION_GENAI"),
        ({"scope": ["opentelemetry.instrumentation.cohere.v1 0.4"]}, "TRACELOOP_TRACE_CONTENT"),
        ({"scope": ["x"], "format": "traceloop"}, "TRACELOOP_TRACE_CONTENT"),
        ({"scope": ["acme"]}, ""),
        ({"scope": 5, "format": ["a"]}, ""),
        ({}, ""),
    ],
)
def test_the_hint_is_that_of_the_instrumentation(metadata: dict, hint: str) -> None:
    said = content_hint(metadata)
    assert hint in said and bool(said) == bool(hint)
    assert not tools_hint(metadata) and tools_hint({"scope": ["strands.telemetry"]})


def test_what_runs_lack_by_instrumentation(project: Project) -> None:
    make_trajectory(project, model="m")
    viewer = client_of(project, Role.VIEWER)
    page = viewer.get(reverse("trajectories:first", args=[project.slug]))
    sources = {source.name: source for source in page.context["sources"]}
    assert len(sources) == 2 and scope_of({}) == ""
    lacks = {part.name for part in sources["REST"].lacks}
    assert "Model" not in lacks and "Outcome" in lacks
    listed = viewer.get(reverse("trajectories:list", args=[project.slug])).content.decode()
    assert reverse("trajectories:first", args=[project.slug]) in listed


def test_what_the_latest_runs_were_stored_without(project: Project, client: Client) -> None:
    def usage(*counts: int) -> dict:
        calls = [{"model": "m", "usage": {"input_tokens": count}} for count in counts]
        return {"input_tokens": 5, "output_tokens": 1, "calls": calls}

    make_trajectory(project, usage=usage(-1, 3, -2))
    last = make_trajectory(project, usage=usage(1, -1), tags=["missing-answer"])
    make_trajectory(make_project(), usage=usage(-1))
    unread, answer = notices_of_latest(project)
    assert unread.path == "usage.calls[].usage.input_tokens" and unread.runs == 2
    assert "not a number from 0" in unread.text and unread.latest == last.pk
    assert (answer.tag, answer.runs) == ("missing-answer", 1)
    page = client_of(project, Role.VIEWER).get(
        reverse("trajectories:arrivals", args=[project.slug])
    )
    html = page.content.decode()
    assert "usage.calls[].usage.input_tokens" in html and "tag=missing-answer" in html
    assert reverse("trajectories:detail", args=[project.slug, last.pk]) in html
