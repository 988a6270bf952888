"""An agent with an address of its own, from its registration to the page of its evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import JobState
from apps.evals.costs import used_in_words
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, HoldoutView
from apps.promotion.actions import make_gate_report
from apps.promotion.preparation import prepare
from apps.registry.models import ModelVersion
from tests.evals.test_answers import work
from tests.evals.test_runs_api import Api
from tests.factories import admin_of, make_environment, make_eval_set, make_project, make_server
from tests.forms import as_read
from tests.registry.model_server import ModelServer, serving
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
PATH = ("POST", "/v1/chat/completions")


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


def solve(body: dict, **more: Any) -> tuple[int, dict]:
    """Closes the ticket that the request names."""
    number = re.findall(r"\d+", body["messages"][-1]["content"])[-1]
    function = {"name": "tickets.close", "arguments": json.dumps({"id": int(number)})}
    return (
        200,
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "type": "function", "function": function}],
                },
                {"role": "assistant", "content": "Done."},
            ],
            "usage": {"input_tokens": 9, "output_tokens": 3},
        }
        | more,
    )


class World:
    def __init__(self) -> None:
        self.project = make_project()
        self.environment, self.set, self.api = (
            make_environment(self.project),
            make_eval_set(self.project),
            Api(self.project),
        )

    def register(self, base_url: str, **fields: Any) -> Any:
        body = {
            "kind": "agent",
            "name": "support-agent",
            "agent_version": "3f2a9c1",
            "reached_by": "http",
        }
        return self.api.post(
            "registry_api:model_versions", body=body | {"base_url": base_url} | fields
        )

    def asked(self, version: Any, **changes: Any) -> dict:
        return {
            "eval_set": str(self.set),
            "environment": str(self.environment),
            "model_version": version,
            "samples_per_task": 1,
        } | changes

    def evaluate(self, server: ModelServer, **changes: Any) -> EvalRun:
        version = self.register(server.base).json()["id"]
        made = self.api.post("evals_api:runs", body=self.asked(version, **changes))
        assert made.status_code == 201, made.content
        return EvalRun.objects.get(pk=made.json()["id"])


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda _: World())


@pytest.fixture
def world(kept: Any, data_dir: Path, settings: Any) -> World:
    world = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR = data_dir
    return world


def test_an_agent_is_registered_called_scored_and_compared(world: World) -> None:
    with serving({PATH: solve}) as server:
        run = world.evaluate(server, timeout_s=120, at_once=2)
        assert "at http://127.0.0.1" in world.api.get("evals_api:run", run.pk).json()["engine"]
        run = work(run)
    assert (run.state, run.error) == (JobState.SUCCEEDED, "")
    sample = run.samples.first()
    assert (
        run.result["metrics"]["success"]["mean"] == 1.0
        and sample.input_tokens == 9
        and len(server.asked) == 3
    )
    bodies = b"".join(body for *_, body in server.asked)
    assert world.environment.harness["system_prompt"].encode()[:40] not in bodies, (
        "an agent brings its own prompt"
    )
    assert b"expected" not in bodies and b'"tools"' in bodies
    looks = {
        view.detail.partition(" at ")[0]: len(view.tasks)
        for view in HoldoutView.objects.filter(kind="view")
    }
    assert looks == {"sent to support-agent@3f2a9c1": 3}, (
        "each held-out task that was sent is a look"
    )
    client = Client()
    client.force_login(admin_of(world.project))
    page = client.get(reverse("evals:run", args=[world.project.slug, run.pk])).content.decode()
    assert "the agent itself at http://127.0.0.1" in page and "at most 120 s per sample" in page
    model = client.get(
        reverse("promotion:model", args=[world.project.slug, run.model_version_id])
    ).content.decode()
    assert "Chat completions (POST" in model
    report = make_gate_report(baseline=run, candidate=run, by=admin_of(world.project))
    assert report.report["checks"], "the gate takes it like any other"
    assert prepare(baseline=run, candidate=run, by=None), (
        "says what cannot be measured, and does not fail"
    )


@pytest.mark.proof
def test_a_version_that_changes_stops_the_evaluation_which_keeps_its_samples(world: World) -> None:
    count = iter(range(100))

    def say(body: dict) -> tuple[int, dict]:
        return solve(body, agent_version="3f2a9c1" if next(count) < 2 else "new")

    with serving({PATH: say}) as server:
        run = work(world.evaluate(server, at_once=1))
    assert run.state == JobState.FAILED and "says that it is version “new”" in run.error
    assert run.samples.filter(success=True).count() == 2
    assert (run.done, run.label) == (2, "2 of 2 succeeded"), "as many as are kept"
    client = Client()
    client.force_login(admin_of(world.project))
    client.post(reverse("evals:open_holdout", args=[world.project.slug, run.pk]))
    page = client.get(reverse("evals:run", args=[world.project.slug, run.pk])).content.decode()
    assert "the samples so far are kept" in page


@pytest.mark.proof
def test_the_reason_of_a_failed_sample_is_kept_and_an_agent_that_never_answers_ends_the_job(
    world: World,
) -> None:
    count = iter(range(100))

    def say(body: dict) -> tuple[int, dict]:
        return solve(body) if next(count) else (400, {"detail": "no such plan"})

    with serving({PATH: say}) as server:
        run = work(world.evaluate(server, at_once=1))
    assert run.state == JobState.SUCCEEDED and run.samples.filter(success=True).count() == 2
    (failed,) = run.samples.filter(success=False)
    assert failed.stop_reason == "agent error" and not failed.masked
    assert "no such plan" in " ".join(failed.details)
    with serving({PATH: (404, {})}) as server:
        run = work(world.evaluate(server))
    assert run.state == JobState.FAILED and "check its address and protocol" in run.error


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"split": "holdout"}, 403, "hold-out"),
        (
            {"split": "train", "most_tokens": 9},
            409,
            "enter the tokens of one call at most (`tokens_per_call`)",
        ),
        (
            {"split": "train", "most_usd": 9, "tokens_per_call": 9},
            409,
            "goes with a limit (`most_tokens`)",
        ),
        (
            {"split": "train", "most_usd": 9},
            409,
            "enter the cost of one call at most (`usd_per_call`)",
        ),
        ({"split": "train", "most_usd": 9, "usd_per_call": 0}, 400, "usd_per_call"),
        (
            {"split": "train", "engine": "transformers"},
            409,
            "nothing else can generate its answers",
        ),
        ({"split": "train", "timeout_s": 0}, 400, "timeout_s"),
        ({"split": "train", "at_once": 10_000}, 400, "at_once"),
    ],
)
def test_what_is_refused(world: World, changes: dict, status: int, says: str) -> None:
    version = world.register("http://127.0.0.1:9/v1").json()["id"]
    api = Api(world.project, may_see_holdout=False)
    answer = api.post("evals_api:runs", body=world.asked(version, **changes))
    assert answer.status_code == status and says in answer.content.decode()
    assert not EvalRun.objects.exists()


def test_only_an_address_that_is_allowed_is_registered_and_called(
    world: World, settings: Any
) -> None:
    version = world.register("http://127.0.0.1:9/v1").json()["id"]
    run = EvalRun.objects.get(
        pk=world.api.post("evals_api:runs", body=world.asked(version)).json()["id"]
    )
    assert as_read(evaluation_spec(run)).engine.allow_private
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    assert world.register("http://127.0.0.1:8/v1").status_code == 400
    refused = world.api.post("evals_api:runs", body=world.asked(version, split="train"))
    assert refused.status_code == 409 and "inside this machine" in refused.json()["detail"]
    run = work(run)
    assert run.state == JobState.FAILED and "inside this machine" in run.error
    other = world.register("http://169.254.169.254/latest")
    assert other.status_code == 400 and "metadata service" in other.content.decode()


def test_an_evaluation_stops_when_its_limit_is_used_up_and_says_what_was_used(world: World) -> None:
    """The agent reports no cost for its second call, and names a model whose price was entered for
    the others.
    """
    make_server(world.project, prices={"gpt-x": [100_000.0, 200_000.0]})
    count = iter(range(100))

    def say(body: dict) -> tuple[int, dict]:
        return solve(body, **({"usage": {}} if next(count) == 1 else {"model": "gpt-x"}))

    with serving({PATH: say}) as server:
        run = work(world.evaluate(server, at_once=1, most_usd=3.2, usd_per_call=0.5))
        assert len(server.asked) == 2
    assert (
        run.state == JobState.FAILED
        and "limit of $3.2 allows no further question; $2.0000 is spent" in run.error
    )
    assert "1 of 2 calls reported no cost: each counts as $0.5" in run.error
    assert (run.samples.count(), run.done, run.attempt, run.max_attempts) == (2, 2, 1, 1)
    api = world.api.get("evals_api:run", run.pk).json()
    assert api["spent"] == {
        "calls": 2,
        "tokens": 12,
        "usd": pytest.approx(2.0),
        "without_tokens": 1,
        "without_cost": 1,
    }
    assert api["engine"].endswith(", at most $3.2 ($0.5 for a call that reports none)")
    client = Client()
    client.force_login(admin_of(world.project))
    client.post(reverse("evals:open_holdout", args=[world.project.slug, run.pk]))
    page = client.get(reverse("evals:run", args=[world.project.slug, run.pk])).content.decode()
    assert (
        "2 calls: $2.0000 of $3.2 (1 reported none: $0.5 each)" in page
        and "the samples so far" in page.lower()
    )


@pytest.mark.proof
def test_an_evaluation_within_its_limit_says_what_it_used(world: World) -> None:
    with serving({PATH: solve}) as server:
        run = work(world.evaluate(server, most_tokens=1000, tokens_per_call=100))
    assert run.state == JobState.SUCCEEDED and run.result["metrics"]["success"]["mean"] == 1.0
    assert run.result["spent"] == {
        "calls": 3,
        "tokens": 36,
        "usd": 0.0,
        "without_tokens": 0,
        "without_cost": 3,
    }
    assert used_in_words(run) == "3 calls: 36 of 1,000 tokens"
    spec = as_read(evaluation_spec(run)).engine
    assert (spec.most_tokens, spec.tokens_per_call, spec.most_usd, spec.prices) == (
        1000,
        100,
        0.0,
        {},
    )


@pytest.mark.proof
def test_patience_is_for_agents_and_others_are_not_asked_for_it(world: World) -> None:
    client = Client()
    client.force_login(admin_of(world.project))
    page = reverse("evals:new_run", args=[world.project.slug, world.set.pk])
    assert not [
        name
        for name in ("timeout_s", "most_usd", "usd_per_call")
        if name in client.get(page).content.decode()
    ]
    world.register("http://127.0.0.1:9/v1", protocol="responses")
    version = ModelVersion.objects.get()
    assert version.protocol == "responses" and "timeout_s" in client.get(page).content.decode()
    given = {
        "model_version": version.pk,
        "environment": world.environment.pk,
        "split": "train",
        "samples_per_task": 1,
        "seed": 0,
        "timeout_s": 60,
        "at_once": 3,
    }
    shown = client.post(page, given, follow=True).content.decode()
    assert "(Responses API), 3 at a time, at most 60 s per sample" in shown
    given |= {"seed": 1, "most_usd": 2, "most_tokens": 5000, "tokens_per_call": 40}
    assert "(`usd_per_call`)" in client.post(page, given).content.decode()
    shown = client.post(page, given | {"usd_per_call": 0.25}, follow=True).content.decode()
    assert (
        "at most 5,000 tokens (40 for a call that reports none), at most $2 ($0.25 for a call"
        in shown
    )
    assert world.register("", reached_by="ci", agent_version="2").status_code == 201
    assert not ModelVersion.objects.evaluated_here().filter(agent_version="2").exists()
    assert (
        world.register("", reached_by="ci", agent_version="3", protocol="chat").status_code == 400
    )
