"""The addresses at which an agent from CI or with traces calls the environment's tools on the state
of its sample.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from apps.core.models import JobState
from apps.evals import rollouts
from apps.evals.models import HoldoutView, SampleRollout, Split
from tests.evals import office
from tests.evals.test_answers import Agent, work
from tests.factories import make_environment, make_eval_set, make_project
from tests.shared import copied, once
from workers.lib.harness import tools

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warm_jobs")]
SEARCH = ("email_search_emails", {"query": "Pavel"})


def made_agent(_: Path) -> Agent:
    project = make_project()
    eval_set = office.make_office_set(project, 3)
    return Agent(project, eval_set, office.make_office(project), split="regression")


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_agent)


@pytest.fixture
def agent(kept: Any, data_dir: Path, settings: Any) -> Agent:
    agent = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR = data_dir
    return agent


def post(url: str, body: Any) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body)
    return Client().post(urlsplit(url).path, text, content_type="application/json")


def by_rest(link: dict) -> office.Use:
    def use(tool: str, args: dict) -> str:
        answer = post(f"{link['tools']}/{tool}", args)
        assert answer.status_code == 200, answer.content
        return answer.json()["output"]

    return use


def by_mcp(link: dict) -> office.Use:
    def use(tool: str, args: dict) -> str:
        asked = {"method": "tools/call", "params": {"name": tool, "arguments": args}}
        answer = post(link["mcp"], {"jsonrpc": "2.0", "id": 1} | asked)
        return answer.json()["result"]["content"][0]["text"]

    return use


def claimed(task: dict, index: int) -> dict:
    """An answer with all the right calls, which the agent has not made."""
    calls = office.right_calls(task["messages"])
    native = [{"name": call["tool"], "arguments": call["args"]} for call in calls]
    return {"task": task["id"], "index": index, "tool_calls": native}


def answered(agent: Agent, run: Callable[..., str], by: Callable[[dict], office.Use]) -> list[dict]:
    """One row for each sample of what an agent says that ran its own loop."""
    return [
        {"task": task["id"], "index": link["index"], "output": run(task["messages"], by(link))}
        for task in agent.tasks()
        for link in task["rollouts"]
    ]


@pytest.mark.parametrize("by", [by_rest, by_mcp])
def test_a_right_agent_with_its_own_loop_is_right(
    agent: Agent, by: Callable[[dict], office.Use]
) -> None:
    assert agent.tasks()[0]["rollouts"][0].keys() == {"index", "mcp", "tools"}
    assert agent.send(answered(agent, office.right, by)).json()["accepted"] == 6
    run = work(agent.run)
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    assert run.result["metrics"]["success"]["mean"] == 1.0
    sample = run.samples.first()
    roles = [message["role"] for message in sample.messages]
    assert roles == ["assistant", "tool"] * (len(roles) // 2) + ["assistant"]
    assert sample.answer_form == "calls" and sample.output == "Done." and sample.executed
    assert not SampleRollout.objects.exclude(state=None).exists(), "they go with the evaluation"


def test_a_wrong_agent_is_wrong_and_one_that_calls_nothing_is_replayed(agent: Agent) -> None:
    one, *others = agent.tasks()
    said = [office.wrong(one["messages"], by_rest(link)) for link in one["rollouts"]]
    rows = [{"task": one["id"], "index": at, "output": text} for at, text in enumerate(said)]
    rows += [claimed(task, index) for task in others for index in task["missing"]]
    agent.send(rows)
    run = work(agent.run)
    found = {(str(s.task_id), s.index): s.success for s in run.samples.all()}
    assert [found[row["task"], row["index"]] for row in rows] == [False] * 2 + [True] * 4


def test_what_an_agent_only_claims_does_not_count(agent: Agent) -> None:
    rows = []
    for task in agent.tasks():
        for link in task["rollouts"]:
            by_rest(link)(*SEARCH)
            rows.append(claimed(task, link["index"]))
    agent.send(rows)
    run = work(agent.run)
    assert run.result["metrics"]["success"]["mean"] == 0.0
    for sample in run.samples.all():
        calls = [call for message in sample.messages for call in message.get("tool_calls", [])]
        assert [call["function"]["name"] for call in calls] == [SEARCH[0]]


def test_an_address_is_the_same_again_and_ends_with_the_answer(agent: Agent) -> None:
    task = agent.tasks()[0]
    link = task["rollouts"][0]
    assert agent.tasks()[0]["rollouts"] == task["rollouts"]
    ids = [urlsplit(one["mcp"]).path.split("/")[2] for one in task["rollouts"]]
    assert len(set(ids)) == 2 and all(len(one) == 43 for one in ids), "256 bits each"
    stored = str(list(SampleRollout.objects.values()))
    assert not any(one in stored for one in ids), "only digests are stored"
    by_rest(link)(*SEARCH)
    agent.tasks()
    assert SampleRollout.objects.get(task=task["id"], index=0).calls == 1, "its state stays"
    agent.send([{"task": task["id"], "index": 0, "output": "Done."}])
    ended = post(f"{link['tools']}/{SEARCH[0]}", SEARCH[1])
    assert (ended.status_code, ended.json()) == (410, {"detail": rollouts.ANSWERED})
    assert Client().get(urlsplit(link["tools"]).path).status_code == 410
    other = task["rollouts"][1]
    assert by_rest(other)(*SEARCH)
    agent.post("evals_api:run_cancel", agent.run.pk)
    over = post(other["mcp"], {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert over.status_code == 410 and over.json()["error"]["message"] == rollouts.OVER
    assert [task["rollouts"] for task in agent.tasks()] == [[], [], []]


def test_each_sample_has_a_state_of_its_own(agent: Agent) -> None:
    task = agent.tasks()[0]
    one, two = map(by_rest, task["rollouts"])
    office.right(task["messages"], one)
    rows = SampleRollout.objects.filter(task=task["id"]).order_by("index")
    states = [row.state for row in rows]
    assert states[0]["changes"] and states[1] is None
    two(*SEARCH)
    assert rows.all()[1].state["changes"] != states[0]["changes"]


def test_bad_requests_get_a_sentence(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    link = agent.tasks()[0]["rollouts"][0]
    one = f"{link['tools']}/{SEARCH[0]}"
    assert post(one, b"{").status_code == 400 and post(one, [1]).status_code == 422
    assert post(one, b'{"a": "' + b"x" * 2**20 + b'"}').status_code == 413
    assert post(one, b'{"a": "\\u0000"}').status_code == 200
    unknown = post(f"{link['tools']}/tickets.close", {"id": 1})
    assert unknown.status_code == 404 and "no tool “tickets.close”" in unknown.json()["detail"]
    assert post(one.replace("/rollout/", "/rollout/x"), {}).json() == {
        "detail": "No rollout has this address."
    }
    assert Client().get("/rollout/").status_code == Client().get("/rollout/a/b").status_code == 404
    monkeypatch.setattr(tools, "MOST_CALLS", 1)
    assert post(one, {}).json() == {"detail": tools.TOO_MANY}
    assert SampleRollout.objects.get(calls__gt=0).calls == 1


def test_held_out_tasks_give_addresses_only_to_who_may_see_them(data_dir: Path) -> None:
    project = make_project()
    eval_set = office.make_office_set(project, 2, Split.HOLDOUT)
    agent = Agent(project, eval_set, office.make_office(project))
    assert not SampleRollout.objects.exists()
    task = agent.tasks()[0]
    views = HoldoutView.objects.filter(kind="view")
    assert sum(len(view.tasks) for view in views) == 2, "each task that is served is a look"
    text = Client().get(urlsplit(task["rollouts"][0]["tools"]).path).content.decode()
    assert task["messages"][-1]["content"] not in text


def test_an_episode_of_one_message_has_no_address(data_dir: Path) -> None:
    project = make_project()
    agent = Agent(project, make_eval_set(project), make_environment(project))
    assert [task["rollouts"] for task in agent.tasks()] == [[], [], []]
    assert not SampleRollout.objects.exists()


def test_an_agent_need_not_say_what_it_did(agent: Agent) -> None:
    rows = answered(agent, office.right, by_rest)
    agent.send([row | {"output": ""} for row in rows])
    assert work(agent.run).result["metrics"]["success"]["mean"] == 1.0


def test_an_agent_that_does_harm_and_then_fails_did_harm(agent: Agent) -> None:
    rows = answered(agent, office.right, by_rest)
    for row in rows:
        del row["output"]
        row["error"] = "TimeoutError: the model"
    agent.send(rows)
    run = work(agent.run)
    for sample in run.samples.all():
        assert sample.stop_reason == "agent error" and not sample.success and not sample.masked
        assert any(message.get("tool_calls") for message in sample.messages), "what it did is shown"
