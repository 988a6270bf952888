"""Models that answer in an agent's own harness: what is evaluated, what cannot be credited to the
model, and what such an evaluation may be compared with.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.automation import specs, steps
from apps.automation.dry_run import dry_run
from apps.core.models import JobState
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, HoldoutView
from apps.promotion import preparation
from apps.promotion.actions import make_gate_report
from apps.promotion.conditions import PromotionError
from apps.registry.actions import register_agent
from apps.registry.models import ModelVersion, Reach
from tests.evals import office
from tests.evals.test_answers import work
from tests.evals.test_runs_api import Api
from tests.factories import admin_of, make_endpoint, make_project, make_server
from tests.forms import as_read
from tests.registry.model_server import chat, serving
from workers.lib.harness import open_rollout

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warm_jobs")]
N = 2
PATH = ("POST", "/v1/chat/completions")


def model(body: dict) -> tuple[int, dict]:
    """Does what it is asked; tells what it was told before that."""
    if body["messages"][-1]["role"] == "tool":
        return chat({"role": "assistant", "content": "Done."})
    (number,) = re.findall(r"\d{8}", body["messages"][-1]["content"])
    function = {"name": office.DELETE, "arguments": json.dumps({"email_id": number})}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return chat({"role": "assistant", "content": None, "tool_calls": calls})


def post(url: str, body: Any) -> dict:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def loop(body: dict, asks: Callable[[list], list] = list) -> tuple[int, dict]:
    """An agent of its own, with a prompt of its own, whose model is elsewhere."""
    place, said = body["metadata"], []
    own = {"role": "system", "content": "You keep an office tidy."}
    while not said or said[-1]["role"] == "tool":
        asked = {"messages": asks([own, *body["messages"], *said]), "tools": body["tools"]}
        found = post(f"{place['flywheel_model_url']}/chat/completions", asked)
        said.append(found["choices"][0]["message"])
        for call in said[-1].get("tool_calls") or ():
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            done = post(f"{place['flywheel_tools']}/{name}", arguments)
            said.append({"role": "tool", "tool_call_id": call["id"], "content": done["output"]})
    return 200, {"messages": said}


class World:
    def __init__(self, served: str, agent: str) -> None:
        self.project = project = make_project()
        self.set, self.environment = office.make_deletions(project, N), office.make_office(project)
        self.model = make_endpoint(project, make_server(project, served), served_as="m")
        self.agent, self.api = self.make_agent("1", agent), Api(project)

    def make_agent(self, version: str, url: str) -> ModelVersion:
        return register_agent(
            project=self.project,
            name="tidy",
            agent_version=version,
            by=admin_of(self.project),
            reached_by=Reach.HTTP,
            base_url=url,
        )

    def start(self, **changes: Any) -> Any:
        body = {
            "eval_set": str(self.set),
            "environment": str(self.environment),
            "model_version": str(self.model),
            "split": "regression",
            "samples_per_task": 1,
        }
        return self.api.post("evals_api:runs", body=body | changes)

    def evaluate(self, **changes: Any) -> EvalRun:
        made = self.start(**{"played_by": str(self.agent)} | changes)
        assert made.status_code == 201, made.content
        return work(EvalRun.objects.get(pk=made.json()["id"]))


@pytest.fixture
def make(data_dir: Path, settings: Any) -> Iterator[Callable[..., World]]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    servers = []

    def world(agent: Any = loop, answers: Any = model) -> World:
        for script in ({PATH: answers, ("GET", "/v1/models"): (200, {"data": []})}, {PATH: agent}):
            servers.append(serving(script))
        return World(*(server.__enter__().base for server in servers))

    yield world
    for server in servers:
        server.__exit__(None, None, None)


def test_the_model_is_scored_by_what_it_did_in_the_agents_harness(
    make: Callable[..., World], client: Client
) -> None:
    told: list[list[dict]] = []

    def tells(body: dict) -> tuple[int, dict]:
        told.append(body["messages"])
        return model(body)

    world = make(answers=tells)
    run = world.evaluate()
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    assert run.result["metrics"]["success"]["mean"] == 1.0
    counts = run.result["metrics"]["counts"]
    assert (counts["samples"], counts["masked"]) == (N, 0)
    assert [m["role"] for m in run.samples.first().messages] == ["assistant", "tool", "assistant"]
    assert {messages[0]["content"] for messages in told} == {"You keep an office tidy."}
    assert run.name.startswith(f"{world.model} in {world.agent} on")
    assert world.api.get("evals_api:run", run.pk).json()["played_by"] == str(world.agent)
    client.force_login(admin_of(world.project))
    page = client.get(run.get_absolute_url()).content.decode()
    assert f"{world.agent}</a>, in its own harness" in " ".join(page.split())


def test_a_wrong_model_is_wrong(make: Callable[..., World]) -> None:
    def other(body: dict) -> tuple[int, dict]:
        status, said = model(body)
        return status, json.loads(re.sub(r"0000(\d{4})", r"0009\1", json.dumps(said)))

    run = make(answers=other).evaluate()
    assert run.result["metrics"]["success"]["mean"] == 0.0
    assert run.result["metrics"]["counts"]["masked"] == 0


def test_an_agent_with_another_model_is_not_credited(make: Callable[..., World]) -> None:
    def other(body: dict) -> tuple[int, dict]:
        number = re.findall(r"\d{8}", body["messages"][-1]["content"])[0]
        post(f"{body['metadata']['flywheel_tools']}/{office.DELETE}", {"email_id": number})
        return 200, {"output": "Done."}

    run = make(agent=other).evaluate()
    assert run.state == JobState.FAILED
    assert {sample.mask_reason for sample in run.samples.all()} == {open_rollout.NO_CALL}


def test_an_agent_that_fails_before_it_asks_fails_the_sample(make: Callable[..., World]) -> None:
    def sometimes(body: dict) -> tuple[int, dict]:
        if "00000001" in json.dumps(body["messages"]):
            return 500, {"error": {"message": "out of ideas"}}
        return loop(body)

    run = make(agent=sometimes).evaluate()
    assert run.result["metrics"]["counts"]["masked"] == 0
    assert run.result["metrics"]["success"]["mean"] == 0.5
    (failed,) = run.samples.filter(success=False)
    assert failed.stop_reason == "agent error" and "HTTP 500" in str(failed.details)


def test_its_patience_is_the_agents(make: Callable[..., World]) -> None:
    world = make()
    started = world.start(played_by=str(world.agent), timeout_s=7, at_once=3)
    given = as_read(evaluation_spec(EvalRun.objects.get(pk=started.json()["id"]))).harness
    assert (given.endpoint.timeout_s, given.at_once) == (7, 3)


def test_what_cannot_play_is_refused(make: Callable[..., World]) -> None:
    world = make()
    for changes, sentence in (
        ({"played_by": str(world.model)}, "is not an agent that is called over HTTP"),
        ({"model_version": str(world.agent), "played_by": str(world.agent)}, "plays itself"),
        ({"played_by": "tidy@9"}, "No agent of this project"),
    ):
        assert sentence in world.start(**changes).content.decode()
    with serving({PATH: loop}) as elsewhere:
        other = world.make_agent("2", elsewhere.base)
        assert world.start(played_by=str(other)).status_code == 201
        assert world.start(played_by=str(world.agent)).status_code == 201
        assert world.start().status_code == 201
        assert "already running" in world.start(played_by=str(other)).content.decode()


def test_held_out_tasks_that_go_to_the_agent_are_seen(make: Callable[..., World]) -> None:
    world = make()
    assert world.start(split="holdout").status_code == 201
    seen = HoldoutView.objects.filter(kind=HoldoutView.Kind.VIEW)
    assert not seen.exists(), "the model's answers stay here"
    assert world.start(split="holdout", played_by=str(world.agent)).status_code == 201
    assert seen.get().detail.startswith(f"sent to {world.agent} at")


def test_only_the_same_harness_is_compared(make: Callable[..., World]) -> None:
    world = make()
    by = admin_of(world.project)
    alone, played, again = world.evaluate(played_by=None), world.evaluate(), world.evaluate()
    with pytest.raises(PromotionError, match="harness"):
        make_gate_report(baseline=alone, candidate=played, by=by)
    assert make_gate_report(baseline=played, candidate=again, by=by).pk
    assert not alone.is_played_like(played) and played.is_played_like(again)
    guards = preparation.guard_runs(played, played.split)
    assert set(guards) == {played, again}
    assert set(preparation.guard_runs(alone, alone.split)) == {alone}
    deployed = world.evaluate(model_version=str(world.agent), played_by=None)
    assert deployed.is_played_like(played), "the same harness, with the model that is deployed"
    refused = world.start(
        played_by=None, stop_against=str(played.pk), split="regression", stop_channel="production"
    )
    assert "in another harness" in refused.content.decode()


def test_a_step_of_a_flow_names_the_agent(make: Callable[..., World]) -> None:
    world = make()
    place = f"set: 'set:{world.set.slug}', environment: {world.environment.slug}"
    step = f"{{do: evaluate, {place}, model: 'version:{world.model}', split: regression, {{}}}}"

    def said(played_by: str) -> Any:
        text = f"steps: [{step.replace('{}', f'played_by: {played_by}')}]"
        return dry_run(world.project, specs.read_yaml(text)).steps[0]

    assert not said("tidy").problem
    assert said("other").problem and "no agent “other”" in said("other").sentence
    newer = world.make_agent("2", world.agent.base_url)
    assert steps.player(world.project, "tidy") == newer


def test_the_job_is_given_the_agent_and_not_the_environments_prompt(
    make: Callable[..., World], settings: Any
) -> None:
    settings.FLYWHEEL_ROLLOUTS_URL = "https://rollouts.example.com"
    world = make()
    world.environment.harness |= {"system_prompt": "Ours.", "temperature": 0.3}
    world.environment.save()
    run = EvalRun.objects.get(pk=world.start(played_by=str(world.agent)).json()["id"])
    given = as_read(evaluation_spec(run))
    assert (given.harness.name, given.harness.url) == ("tidy", "https://rollouts.example.com")
    assert given.environment.harness.system_prompt is None
    assert given.environment.harness.temperature == 0.3
