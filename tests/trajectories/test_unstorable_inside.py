"""Half of a surrogate pair, or NUL, as an escape in the JSON that a text of a run carries: all that
reads it goes on.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.evals.models import Split, Task
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure
from apps.trajectories import digest
from apps.trajectories.actions.store import find
from apps.trajectories.schema import Feedback, OutcomeChange
from tests.amounts import amount
from tests.factories import admin_of, make_eval_set, make_member, task_from_trajectory, tell
from tests.test_access import logged_in
from tests.trajectories.test_traces import agent_span, assembled, send, span, trace_id
from workers.lib.messages import json_of, unpacked

pytestmark = pytest.mark.django_db
INSIDE = (
    r'{"tool": "tickets.find", "args": {"q": "half \ud83d of it", "nul\u0000": ["a\u0000b",'
    r' {"\udfff": "\ud83d\ude00"}]}}'
)
ARGUMENTS = (
    r'{"id": 12, "q": "half \ud83d of it", "nul\u0000": ["a\u0000b", {"\udfff": "\ud83d\ude00"}]}'
)


@pytest.mark.parametrize("read", [json_of, unpacked])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"a": "\ud83d"}', {"a": "\ufffd"}),
        (r'{"a\u0000": ["\uDFFF\u0000"]}', {"a\ufffd": ["\ufffd\ufffd"]}),
        (r'["\ud83d\ude00"]', ["\U0001f600"]),
        (r'["\\u0000 \\ud83d"]', [r"\u0000 \ud83d"]),
        ('["ünï"]', ["ünï"]),
    ],
)
def test_what_is_read_can_be_stored_and_shown(read: Any, text: str, value: Any) -> None:
    assert read(text) == value
    json.dumps(read(text), ensure_ascii=False).encode()


PLACES = ("arguments", "result", "request", "answer", "metadata", "tools", "correction")


def messages(where: tuple[str, ...]) -> list[dict]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "tickets.find", "arguments": ARGUMENTS},
    }
    asked, reply = "Close ticket 12.", "open"
    answer: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if "arguments" not in where:
        call["function"]["arguments"] = '{"id": 12}'
    if "result" in where:
        reply = INSIDE
    if "text" in where:
        answer = {"role": "assistant", "content": INSIDE}
        return [{"role": "user", "content": asked}, answer, {"role": "user", "content": INSIDE}]
    if "request" in where:
        asked = INSIDE
    last = {"role": "assistant", "content": INSIDE if "answer" in where else "Closed."}
    return [
        {"role": "user", "content": asked},
        answer,
        {"role": "tool", "tool_call_id": "c1", "content": reply},
        last,
    ]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "where", [("text",), *amount([PLACES], [PLACES, *((place,) for place in PLACES)])], ids="+".join
)
def test_every_page_and_file_of_the_run_opens_and_a_task_is_made_of_it(
    agent: Client, project: Project, where: tuple[str, ...]
) -> None:
    tool = {
        "type": "function",
        "function": {"name": "tickets.find", "parameters": {"type": "object"}},
    }
    sent = {"id": "r", "messages": messages(where), "tools": [tool], "metadata": {"note": INSIDE}}
    if "tools" in where:
        tool["function"]["parameters"] = INSIDE
    answer = agent.post("/api/v1/trajectories/", json.dumps(sent), content_type="application/json")
    assert answer.status_code == 201, answer.json()
    run = find(project, "r")
    assert run
    corrected = {"tool": "tickets.close", "args": {"id": 12}}
    if "correction" in where:
        corrected = {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "tickets.close", "arguments": ARGUMENTS}}],
        }
    news = Feedback(
        outcome=OutcomeChange(status="failure"), by="user", message_index=1, corrected=corrected
    )
    tell(run, news)
    _visit(project, run)
    digest.run()
    assert agent.get("/api/v1/trajectories/r/").status_code == 200


def _visit(project: Project, run: Any) -> None:
    digest.run()
    classify_project(project=project)
    failure = Failure.objects.get(trajectory=run)
    person = logged_in(make_member(project, Role.OWNER))
    eval_set = make_eval_set(project, 1, 1, frozen=False)
    urls = [
        reverse(f"trajectories:{name}", args=[project.slug, run.pk]) for name in ("detail", "raw")
    ]
    if run.metadata.get("source") == "otlp":
        urls.append(reverse("trajectories:spans", args=[project.slug, run.pk]))
    urls += [
        reverse(f"trajectories:{name}", args=[project.slug])
        for name in ("list", "live", "sessions")
    ]
    urls += [
        f"{reverse('trajectories:export', args=[project.slug])}?format={name}"
        for name in ("jsonl", "parquet", "sft")
    ]
    urls += [
        reverse(f"failures:{name}", args=[project.slug, failure.pk]) for name in ("case", "similar")
    ]
    make = reverse("evals:task_from_failure", args=[project.slug, failure.pk])
    urls += [make, f"{make}?cut=1", f"{make}?cut=3&suggestion=1"]
    for url in urls:
        answer = person.get(url)
        assert answer.status_code in (200, 302), url
        b"".join(answer.streaming_content) if answer.streaming else answer.content
    run = type(run).objects.get(pk=run.pk)
    made = task_from_trajectory(
        eval_set=eval_set, trajectory=run, split=Split.TRAIN, by=admin_of(project)
    )
    task = Task.objects.get(pk=made.pk)
    json.dumps([task.messages, task.expected], ensure_ascii=False).encode()
    assert person.get(reverse("evals:task", args=[project.slug, task.pk])).status_code == 200


def test_traces(agent: Client, project: Project) -> None:
    said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Find it"}]}])
    answered = json.dumps(
        [
            {
                "role": "assistant",
                "parts": [
                    {"type": "tool_call", "id": "c1", "name": "look", "arguments": ARGUMENTS}
                ],
            }
        ]
    )
    chat = span(
        1,
        2,
        1,
        error="failed",
        gen_ai__operation__name="chat",
        gen_ai__input__messages=said,
        gen_ai__output__messages=answered,
        other__json=INSIDE,
    )
    tool = span(
        1,
        3,
        1,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="look",
        gen_ai__tool__call__id="c1",
        gen_ai__tool__call__arguments=ARGUMENTS,
        gen_ai__tool__call__result=INSIDE,
    )
    send(agent, agent_span(1, 1, error="failed"), chat, tool)
    assembled()
    run = find(project, trace_id(1))
    assert run and len(run.messages) > 1
    tell(
        run,
        Feedback(
            outcome=OutcomeChange(status="failure"),
            message_index=1,
            corrected={"tool": "a", "args": {}},
        ),
    )
    _visit(project, run)
