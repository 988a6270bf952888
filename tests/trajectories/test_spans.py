"""A span opens: from the trace while it is kept, from the run after that; with a tree, and the
whole as text.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.trajectories.models import SpanBatch, Trajectory
from tests.factories import make_failed, make_member, make_project, make_trajectory
from tests.test_access import logged_in
from tests.trajectories.test_traces import agent_span, assembled, chat, send, span, text

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def project() -> Project:
    return make_project()


@pytest.fixture
def viewer(project: Project) -> Client:
    return logged_in(make_member(project, Role.VIEWER))


@pytest.fixture
def row(agent: Client, project: Project) -> Trajectory:
    """An agent, a model call that wants a tool, the tool that fails, and the answer."""
    send(
        agent,
        agent_span(1, 1),
        chat(
            1,
            2,
            [text("user", "Where is it?")],
            "Looking.",
            1,
            gen_ai__usage__input_tokens=7,
            note=HOSTILE,
            big="x" * 5_000_000,
        ),
        span(
            1,
            3,
            1,
            at=12,
            error="it broke",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name="look",
            gen_ai__tool__call__arguments='{"place": "hall"}',
        ),
        chat(
            1,
            4,
            [text("user", "Where is it?"), text("assistant", "Looking."), text("user", "And now?")],
            "Gone.",
            1,
            at=30,
        ),
    )
    assembled(0)
    return project.trajectories.get()


def page(client: Client, row: Trajectory, span: str = "", name: str = "spans", **query: str) -> Any:
    return client.get(
        reverse(f"trajectories:{name}", args=[row.project.slug, row.pk]), {"span": span, **query}
    )


def test_the_first_failed_span_opens_with_its_error_and_arguments(
    viewer: Client, row: Trajectory
) -> None:
    answer = page(viewer, row)
    shown = answer.content.decode()
    assert (
        answer.context["bar"].name == "execute_tool"
        and "it broke" in shown
        and "&quot;place&quot;: &quot;hall&quot;" in shown
    )
    assert shown.count('class="step failed"') == 1 and "1 failed" in shown


def test_a_model_call_has_messages_tokens_and_attributes(viewer: Client, row: Trajectory) -> None:
    answer = page(viewer, row, f"{2:016x}")
    shown = answer.content.decode()
    assert "Where is it?" in shown and "Looking." in shown and "7 in" in shown
    assert HOSTILE not in shown and "&lt;script&gt;" in shown
    assert len(shown) < 100_000 and "4,999,400 more" in shown  # of an attribute of 5 MB
    whole = page(viewer, row, f"{2:016x}", "span_text", attribute="big")
    assert (
        whole.content == b"x" * 5_000_000 and whole["Content-Type"] == "text/plain; charset=utf-8"
    )
    assert page(viewer, row, f"{2:016x}", "span_text", part="output").status_code == 200
    assert (
        json.loads(page(viewer, row, f"{2:016x}", "span_text").content)["span"]["attributes"][
            "note"
        ]
        == HOSTILE
    )
    assert page(viewer, row, f"{2:016x}", "span_text", attribute="none").status_code == 404


@pytest.mark.proof
def test_j_and_k_walk_the_tree_and_e_the_failed(viewer: Client, row: Trajectory) -> None:
    names, key = [], f"{1:016x}"
    while key:
        context = page(viewer, row, key).context
        names.append(context["bar"].key[-1])
        key = context["next"].key if context["next"] else ""
    assert names == ["1", "2", "3", "4"]
    assert page(viewer, row, f"{4:016x}").context["next_failed"].key == f"{3:016x}"
    assert page(viewer, row, f"{3:016x}").context["next_failed"] is None


def test_after_the_trace_is_removed_the_run_tells_what_it_keeps(
    viewer: Client, row: Trajectory
) -> None:
    SpanBatch.objects.all().delete()
    answer = page(viewer, row, f"{2:016x}")
    shown = answer.content.decode()
    assert "Looking." in shown and "7 in" in shown and "kept for 3 days" in shown
    assert "it broke" in page(viewer, row, f"{3:016x}").content.decode()
    assert (
        json.loads(page(viewer, row, f"{2:016x}", "span_text").content)["step"]["kind"] == "model"
    )


def test_a_span_of_another_run_is_not_found(
    viewer: Client, row: Trajectory, agent: Client, project: Project
) -> None:
    send(agent, agent_span(2, 9), chat(2, 8, [text("user", "Hi")], "A secret.", 9))
    assembled(0)
    for strange in (f"{8:016x}", "#99", "x" * 9000, "\U0001f600"):
        assert page(viewer, row, strange).status_code == 404
    assert (
        logged_in(make_member(make_project()))
        .get(reverse("trajectories:spans", args=[project.slug, row.pk]))
        .status_code
        == 404
    )


def test_steps_that_were_sent_with_a_row_open_too(viewer: Client, project: Project) -> None:
    steps: list[Any] = [
        {
            "name": "plan",
            "start_ms": 0,
            "duration_ms": 5,
            "input": {"q": HOSTILE},
            "output": "ok",
            "retries": 2,
        },
        {"name": "act", "start_ms": 5, "duration_ms": 5, "span_id": "a/b?c", "error": True},
        {"name": "again", "start_ms": 10, "duration_ms": 5, "span_id": "a/b?c"},
        "nonsense",
        {"name": 7},
    ]
    row = make_trajectory(project, metadata={"steps": steps})
    assert page(viewer, row).context["bar"].name == "act"
    plan = page(viewer, row, "#0")
    assert HOSTILE not in plan.content.decode() and "retries" in plan.content.decode()
    assert page(viewer, row, "#2").context["bar"].name == "again"
    assert page(viewer, row, "#2", "span_text").status_code == 200


def test_a_run_without_steps_has_no_spans(viewer: Client, project: Project) -> None:
    assert page(viewer, make_failed(project)).status_code == 404


@pytest.mark.proof
def test_two_thousand_spans_make_a_light_page(viewer: Client, project: Project) -> None:
    steps = [
        {
            "name": "s" * 200,
            "span_id": f"{n:032x}",
            "start_ms": n,
            "duration_ms": 1,
            "error": "e" * 300,
        }
        for n in range(2000)
    ]
    row = make_trajectory(project, metadata={"steps": steps})
    shown = page(viewer, row, f"{1500:032x}").content.decode()
    assert len(shown) < 300_000 and 'aria-current="true"' in shown


def test_the_trajectory_leads_to_its_spans(viewer: Client, row: Trajectory) -> None:
    shown = viewer.get(
        reverse("trajectories:detail", args=[row.project.slug, row.pk])
    ).content.decode()
    assert f"/spans/?span={3:016x}" in shown and "1\n              failed" in shown.replace(
        "1 failed", "1\n              failed"
    )
