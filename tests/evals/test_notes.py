"""What an evaluation says about its own numbers, on the page, in the API and in `flywheel-eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import JobState
from apps.evals.models import EvalSet
from apps.evals.notes import notes_of
from apps.training.advice import advice_of
from tests.evals.test_answers import Agent, work
from tests.factories import (
    admin_of,
    make_environment,
    make_eval_set,
    make_package,
    make_project,
)
from workers.lib.transcripts import CALLS, NOTHING, OWN_CALLS, TEXT, answer_form

pytestmark = pytest.mark.django_db


NO_CALL = "No run called a tool of the environment;"


def said(content: Any, **more: Any) -> dict:
    return {"role": "assistant", "content": content} | more


def named(tool: str) -> dict:
    return {"id": "1", "type": "function", "function": {"name": tool, "arguments": "{}"}}


CALL = {"id": "1", "type": "function", "function": {"name": "tickets.close", "arguments": "{"}}


@pytest.mark.parametrize(
    ("messages", "form"),
    [
        ([], NOTHING),
        ([said("")], NOTHING),
        ([said(None), {"role": "user", "content": "Hello?"}, said(" \n")], NOTHING),
        ([said("<think>They want ticket 12 closed")], NOTHING),
        ([said([{"type": "reasoning", "text": "Hm."}])], NOTHING),
        ([said("Le ticket 12 est fermé.")], TEXT),
        ([said("Thought: close it.\nAction: tickets.close[12]")], TEXT),
        ([said("<think>Hm.</think>已关闭。")], TEXT),
        ([said(None, tool_calls=[CALL])], CALLS),
        ([said(None, tool_calls=[{"function": {"arguments": "{}"}}])], CALLS),
        ([said(None, function_call={"name": "tickets.close", "arguments": "{}"}), said("")], CALLS),
        ([said('{"tool": "tickets.close", "args": {"id": 12}}')], CALLS),
        ([said('{"tool": "tickets.close", "args": {')], CALLS),
        ([said(None, tool_calls=[named("tickets_close")])], CALLS),
        ([said(None, tool_calls=[named("transfer_to_billing")]), said("Done.")], OWN_CALLS),
        ([said(None, tool_calls=[named("think"), named("tickets.close")])], CALLS),
        ([said("\u200b\ufeff")], NOTHING),
    ],
)
def test_an_answer_calls_says_or_is_nothing(messages: list[dict], form: str) -> None:
    assert answer_form(messages, ["tickets.close", "tickets.create"]) == form


def test_calls_are_the_agents_own_only_where_the_tasks_tools_are_known() -> None:
    assert answer_form([said(None, tool_calls=[named("transfer_to_billing")])]) == CALLS


def counts(**changes: int) -> dict[str, int]:
    return {"samples": 80, "masked": 0, "called": 80, "lack_calls": 0} | changes


@pytest.mark.parametrize(
    ("shown", "note"),
    [
        ({"samples": 80}, ""),  # of before these were counted
        (counts(), ""),
        (counts(other_results=3), "3 of 80 runs saw other results than the environment's"),
        (counts(no_answer=39), ""),
        (counts(no_answer=72), "The agent failed to answer 72 of 80 samples"),
        (
            counts(called=0, lack_calls=80, tasks_need_calls=40),
            f"{NO_CALL} 40 tasks need calls, or a state",
        ),
        (
            counts(called=0, lack_calls=2, tasks_need_calls=1),
            f"{NO_CALL} 1 task needs calls",
        ),
        (
            counts(called=0, lack_calls=78),
            f"{NO_CALL} 78 of 80 failed, and whether their tasks need calls is up to",
        ),
        (
            counts(called=40, lack_calls=40, tasks_need_calls=20),
            "40 of 80 runs failed without calling a tool of the environment; 20 tasks need calls",
        ),
        (counts(called=0), ""),  # every answer in words was right
        (counts(called=75, lack_calls=5, tasks_need_calls=5), ""),
    ],
)
def test_a_note_says_what_the_counts_hold(shown: dict[str, int], note: str) -> None:
    notes = notes_of(shown, agent=True)
    assert len(notes) == bool(note) and all(text.startswith(note) for text in notes)


def test_the_way_out_of_a_model_is_another_than_that_of_an_agent() -> None:
    shown = counts(called=0, lack_calls=80, tasks_need_calls=40)
    assert "Only calls at the address of its sample" in notes_of(shown, agent=True)[0]
    assert "dialect" in notes_of(shown, agent=False)[0]


def page_of(agent: Agent) -> str:
    client, project = Client(), agent.run.project
    client.force_login(admin_of(project))
    return client.get(reverse("evals:run", args=[project.slug, agent.run.pk])).content.decode()


def evaluated(eval_set: EvalSet, environment: Any, **answer: Any) -> Agent:
    agent = Agent(eval_set.project, eval_set, environment)
    agent.send([{"task": row["task"], "index": row["index"], **answer} for row in agent.rows()])
    agent.run = work(agent.run)
    assert agent.run.state == JobState.SUCCEEDED, agent.run.error
    return agent


def test_an_agent_that_only_reports_its_work_is_not_0_without_a_word(data_dir: Path) -> None:
    project = make_project()
    agent = evaluated(
        make_eval_set(project), make_environment(project), output="Done: ticket closed."
    )
    metrics = agent.state()["metrics"]
    assert metrics["success"]["mean"] == 0.0
    (note,) = agent.state()["notes"]
    assert note.startswith(f"{NO_CALL} 3 tasks need calls") and "docs/agents.md" in note
    assert note in page_of(agent)
    (advice,) = advice_of(agent.run)
    assert advice.why.startswith("6 of 6 samples failed without a call")


@pytest.mark.proof
def test_calls_of_tools_that_the_environment_does_not_have_are_not_calls_of_its_tools(
    data_dir: Path,
) -> None:
    project = make_project()
    call = {"name": "ask_billing_agent", "arguments": {"question": "Close ticket 12"}}
    agent = evaluated(
        make_eval_set(project), make_environment(project), tool_calls=[call], output="Closed."
    )
    assert agent.state()["metrics"]["counts"]["called"] == 0
    (note,) = agent.state()["notes"]
    assert note.startswith(f"{NO_CALL} 3 tasks need calls")


@pytest.mark.proof
def test_where_own_code_scores_what_tasks_need_is_not_claimed(
    data_dir: Path, tmp_path: Path
) -> None:
    project = make_project()
    agent = evaluated(
        make_eval_set(project), make_package(project, tmp_path), output="The counter is at two."
    )
    (note,) = agent.state()["notes"]
    assert note.startswith(f"{NO_CALL} 6 of 6 failed, and whether their tasks need")
    rate = agent.state()["metrics"]["valid_json"]
    assert rate["mean"] is None and "not measured here" in page_of(agent)


@pytest.mark.proof
def test_an_agent_that_fails_to_answer_gets_one_advice_alone(data_dir: Path) -> None:
    project = make_project()
    agent = Agent(project, make_eval_set(project), make_environment(project))
    broken = [{"error": "KeyError: 'plan'"}, {"output": " \n"}, {"error": "timed out after 30 s"}]
    rows = agent.rows()
    agent.send(
        [
            {"task": row["task"], "index": row["index"]} | broken[at % 3]
            for at, row in enumerate(rows)
        ]
    )
    agent.run = work(agent.run)
    assert agent.state()["metrics"]["counts"]["no_answer"] == len(rows)
    (note,) = agent.state()["notes"]
    assert note.startswith("The agent failed to answer 6 of 6 samples")
    (advice,) = advice_of(agent.run)
    assert (advice.fix, advice.title) == ("answers", "Make the agent answer")
    assert advice.why.startswith("The agent failed to answer 6 of 6 samples")
