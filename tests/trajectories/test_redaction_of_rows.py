"""What rules find is never stored: rows, spans, feedback; and a rule that cannot be used stops the
receiver.
"""

from __future__ import annotations

import json

import pytest
import zstandard
from django.test import Client

from apps.core.models import Project
from apps.trajectories import traces
from apps.trajectories.actions import redaction
from apps.trajectories.actions.store import find
from apps.trajectories.models import SpanBatch, SpanBody, Trajectory
from apps.trajectories.otlp import Link, Scope, Span
from apps.trajectories.redaction import RuleError
from tests.factories import admin_of, make_project, row
from tests.trajectories.test_traces import assembled, chat, send, text, trace_id

pytestmark = pytest.mark.django_db
ADDRESS = "zoe.q@example.org"
ONE = "/api/v1/trajectories/"


@pytest.fixture
def project() -> Project:
    made = make_project()
    redaction.save_builtins(project=made, chosen={"email": False}, by=admin_of(made))
    return made


def test_rows_and_feedback(agent: Client, project: Project) -> None:
    sent = row(
        name="a",
        request=f"Write to {ADDRESS}",
        call={"tool": "email.send", "args": {"to": ADDRESS}},
    )
    assert agent.post(ONE, json.dumps(sent), content_type="application/json").status_code == 201
    said = {"comment": f"{ADDRESS} complained", "corrected": {"to": ADDRESS}}
    assert (
        agent.post(
            f"{ONE}a/feedback/", json.dumps(said), content_type="application/json"
        ).status_code
        == 200
    )
    stored = find(project, "a")
    assert stored and "[EMAIL]" in stored.preview
    assert ADDRESS not in agent.get(f"{ONE}a/").content.decode()
    assert stored.interventions[0]["after"] == {"to": "[EMAIL]"}


def test_spans_before_they_are_kept(agent: Client, project: Project) -> None:
    send(
        agent,
        chat(1, 1, [text("user", f"Write to {ADDRESS}")], "Done", error=f"{ADDRESS} is unknown"),
    )
    assert not SpanBody.objects.exists()
    for batch in SpanBatch.objects.all():
        assert ADDRESS not in traces.decode(zstandard.decompress(bytes(batch.data))).__repr__()
    assembled()
    stored = find(project, trace_id(1))
    assert (
        stored
        and stored.messages[0]["content"] == "Write to [EMAIL]"
        and ADDRESS not in stored.outcome_reason
    )


def test_the_scope_and_the_links_of_spans(project: Project) -> None:
    span = Span(
        trace_id="a" * 32,
        span_id="b" * 16,
        scope=Scope(name=ADDRESS, version=ADDRESS, schema_url=ADDRESS),
        links=[Link("c" * 32, "d" * 16, {ADDRESS: ADDRESS})],
    )
    traces.keep(project=project, spans=[span])
    (batch,) = SpanBatch.objects.all()
    kept = repr(traces.decode(zstandard.decompress(bytes(batch.data))))
    assert ADDRESS not in kept and kept.count("[EMAIL]") == 5


@pytest.mark.parametrize(
    "session",
    [
        "2f1e0c7a-5b1d-4f43-9a39-0d4b1a1f6c2e",
        "9f86d081884c7d659a2feaa0c55ad015-3-1",
        "chat_a8Xk29Q",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "session__id",
        "langfuse__session__id",
        "gen_ai__conversation__id",
        "ai__telemetry__metadata__sessionId",
        "traceloop__association__properties__session_id",
    ],
)
def test_the_rules_of_a_new_project_leave_session_ids(
    agent: Client, project: Project, name: str, session: str
) -> None:
    """Otherwise all sessions of a project become one."""
    redaction.save_builtins(
        project=project, chosen=dict.fromkeys(redaction.ON_FROM_THE_START, False), by=None
    )
    send(agent, chat(1, 1, [text("user", "My password is Hq7!xT2z")], "Done", **{name: session}))
    assembled()
    stored = find(project, trace_id(1))
    assert (
        stored
        and stored.session_id == session
        and stored.messages[0]["content"] == "My password is [PASSWORD]"
    )


def test_a_rule_that_cannot_be_used_stores_nothing(
    agent: Client, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(project: Project) -> None:
        raise RuleError("Presidio is not installed.")

    for name in (
        "actions.store.redactor_of",
        "api.redactor_of",
        "otlp_api.quick_redactor_of",
        "traces.quick_redactor_of",
    ):
        monkeypatch.setattr(f"apps.trajectories.{name}", broken)
    answers = [
        agent.post(ONE, json.dumps(row(name="a")), content_type="application/json"),
        send(agent, chat(1, 1, [text("user", "Hi")], "Done")),
    ]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert "Presidio" in answers[0].json()["detail"]
    assert not Trajectory.objects.exists() and not SpanBatch.objects.exists()
