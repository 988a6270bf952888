"""Finding the step by replay: what can be replayed, what it will cost, what is found, and what that
changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import runner
from apps.core.models import AuditEvent, JobState, Project
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals.models import HoldoutView, Split, StepSearch, Task
from apps.evals.replays.job import complete, find_step_spec, store_events
from apps.evals.source_runs import read_run, step_at
from apps.evals.suggestions import REPLAYED, plan_of, suggestions
from apps.failures.actions import decisions
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure
from apps.registry.models import ModelVersion
from apps.training.models import Source
from apps.training.sources import find_examples
from apps.trajectories.exports import HELD_OUT
from apps.trajectories.models import Trajectory
from bench.planted_steps import ENVIRONMENT, Planted, answer, completion, planted
from tests.evals.test_runs_api import Api
from tests.factories import (
    admin_of,
    make_endpoint,
    make_member,
    make_project,
    make_server,
    make_trajectory,
    tool_message,
    unsearched,
)
from tests.registry.model_server import ModelServer, serving
from tests.shared import copied, once
from workers.lib.step_search import Tried, next_try

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warm_jobs")]
PATH = ("POST", "/v1/chat/completions")
SEEDS = range(6)


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True


class World:
    """Planted failures of an agent in an office, their tasks, and an environment."""

    def __init__(self) -> None:
        self.project = make_project()
        self.cases = [planted(seed) for seed in SEEDS]
        self.environment = office(self.project)
        self.set = evals.create_eval_set(
            project=self.project, slug="office", by=admin_of(self.project)
        )
        for case in self.cases:
            fail(self.project, case)
            add_task(self, case)
        classify_project(project=self.project)
        self.api = Api(self.project)

    def failure(self, case: Planted) -> Failure:
        return Failure.objects.get(project=self.project, trajectory__external_id=case.name)

    def body(self, case: Planted, version: ModelVersion, **changes: Any) -> dict[str, Any]:
        return {
            "failure": self.failure(case).pk,
            "environment": str(self.environment),
            "model_version": version.pk,
            "each": 8,
        } | changes

    def endpoint(self, server: ModelServer) -> ModelVersion:
        return make_endpoint(self.project, make_server(self.project, server.base))


def office(project: Project, **harness: Any) -> Environment:
    by = admin_of(project)
    verifier = save_verifier(project=project, name="own", spec={"kind": "tables"}, by=by)
    return save_environment(
        project=project,
        slug="office",
        builtin=ENVIRONMENT["name"],
        harness=ENVIRONMENT["harness"] | harness,
        verifier=verifier,
        by=by,
    )


def fail(project: Project, case: Planted) -> Trajectory:
    return make_trajectory(
        project,
        id=case.name,
        messages=[{"role": "user", "content": case.request}, *case.messages],
        outcome={"status": "failure"},
    )


def add_task(world: World, case: Planted, split: Split = Split.TRAIN) -> Task:
    task = evals.written_task(
        world.set,
        key=case.name,
        request=case.request,
        split=split,
        by=admin_of(world.project),
        expected={"calls": case.calls},
    )
    with unsearched():
        evals.store_tasks(eval_set=world.set, tasks=[task], by=admin_of(world.project), what="made")
    return task


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda _: World())


@pytest.fixture
def world(kept: Any, data_dir: Path, settings: Any) -> World:
    world = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR = data_dir
    return world


@pytest.fixture
def server(world: World) -> Iterator[ModelServer]:
    to_do = {case.request: case.calls for case in world.cases}

    def say(body: dict) -> tuple[int, dict]:
        return 200, completion(body, answer(body, to_do, slip=0.02))

    with serving({PATH: say}) as server:
        yield server


def step_of(case: Planted) -> int:
    """The message of the planted step, in the run that begins with a request."""
    agents = [at for at, one in enumerate(case.messages, 1) if one["role"] == "assistant"]
    return agents[case.step]


def work(search: StepSearch) -> StepSearch:
    search.refresh_from_db()
    runner.run(search)
    return StepSearch.objects.get(pk=search.pk)


def started(world: World, body: dict[str, Any]) -> StepSearch:
    made = world.api.post("evals_api:step_searches", body=body)
    assert made.status_code == 201, made.content
    return StepSearch.objects.get(pk=made.json()["id"])


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("number", range(6))
def test_the_planted_step_is_blamed(world: World, server: ModelServer, number: int) -> None:
    case, version = world.cases[number], world.endpoint(server)
    failure = world.failure(case)
    before = world.api.get(
        "evals_api:step_search_forecast",
        failure=case.name,
        environment=str(world.environment),
        model_version=version.pk,
    ).json()
    assert before["steps"] == case.steps and before["input_tokens"] > before["output_tokens"] > 0
    search = work(started(world, world.body(case, version)))
    assert (search.state, search.error) == (JobState.SUCCEEDED, "")
    told = world.api.get("evals_api:step_search", search.pk).json()
    verdict = told["verdict"]
    assert (verdict["step"], verdict["is_sure"]) == (step_of(case), True), told
    spent = told["input_tokens"] + told["output_tokens"]
    assert spent / 3 < before["input_tokens"] + before["output_tokens"] < 3 * spent
    assert told["done"] == sum(one["n"] for one in told["values"]) <= before["continuations"]
    assert told["input_tokens"] > told["output_tokens"] > 0 == told["uncounted"]
    tried = {one["step"]: one for one in told["values"] if one["n"]}
    assert tried[verdict["step"]]["successes"] > 0 and tried[verdict["step"]]["low"] > 0
    failure.refresh_from_db()
    assert failure.blamed_message == step_of(case)
    assert failure.evidence[-1]["rule"] == "replay"
    assert AuditEvent.objects.filter(action="failure.replayed", project=world.project).exists()
    good = world.api.get(
        "evals_api:continuations", search.pk, step=verdict["step"], success="true"
    ).json()["results"]
    assert good and good[0]["messages"][-1]["content"] == "Everything is done."


@pytest.fixture
def version(world: World) -> ModelVersion:
    """One that nobody asks."""
    return make_endpoint(world.project)


def refused(world: World, body: dict[str, Any]) -> str:
    answered = world.api.post("evals_api:step_searches", body=body)
    assert answered.status_code in (400, 409), answered.content
    return json.dumps(answered.json(), ensure_ascii=False)


BETTER = [{"role": "assistant", "content": "Better."}]


def outcome(
    search: StepSearch,
    successes: dict[int, int],
    n: int = 8,
    *,
    messages: list[dict] = BETTER,
    **replayed: Any,
) -> StepSearch:
    """What the program reports: of n continuations from each step (a message), so many succeed."""
    places = search.spec["places"]
    told = {
        "type": "replayed",
        "steps": [places.index(step) for step in search.spec["steps"]],
        "differs_at": None,
        "difference": "",
    }
    samples = [
        {
            "type": "sample",
            "step": places.index(step),
            "index": index,
            "output": "",
            "messages": messages,
            "reward": float(index < won),
            "success": index < won,
        }
        for step, won in successes.items()
        for index in range(n)
    ]
    store_events(search, [told | replayed, *samples])
    return search


def ended(search: StepSearch, **result: Any) -> StepSearch:
    StepSearch.objects.filter(pk=search.pk).update(
        result=complete(search, result), state="succeeded", finished_at=timezone.now()
    )
    search.refresh_from_db()
    return search


def found(
    world: World, case: Planted, version: ModelVersion, messages: list[dict] = BETTER
) -> StepSearch:
    """A finished search that blames the planted step."""
    search = started(world, world.body(case, version))
    steps, right = search.spec["steps"], step_of(case)
    values = {
        step: 16 * (step <= right) for step in (steps[0], right, after(search, right)) if step
    }
    return ended(outcome(search, values, 16, messages=messages))


def after(search: StepSearch, step: int) -> int | None:
    return next((one for one in search.spec["steps"] if one > step), None)


def test_a_person_s_step_is_kept_and_a_guess_of_the_rules_is_not(
    world: World, version: ModelVersion
) -> None:
    case, other = world.cases[0], world.cases[1]
    decisions.blame(failure=world.failure(case), by=admin_of(world.project), message=1)
    found(world, case, version)
    found(world, other, version)
    kept, moved = world.failure(case), world.failure(other)
    assert kept.blamed_message == 1 and kept.evidence[-1]["rule"] == "replay"
    assert moved.blamed_message == step_of(other)
    classify_project(project=world.project)
    again = world.failure(other)
    assert again.blamed_message == step_of(other), "the rules read the run again"
    assert [item["rule"] for item in again.evidence].count("replay") == 1
    said = AuditEvent.objects.filter(action="failure.replayed").order_by("pk")
    assert [event.detail["kept"] for event in said] == [True, False]


def test_what_is_not_certain_blames_nothing(world: World, version: ModelVersion) -> None:
    case = world.cases[3]
    before = world.failure(case).blamed_message
    search = started(world, world.body(case, version))
    steps = search.spec["steps"]
    ended(outcome(search, {steps[0]: 4, steps[1]: 3, steps[2]: 1}))
    verdict = world.api.get("evals_api:step_search", search.pk).json()["verdict"]
    assert verdict["step"] == steps[1] and not verdict["is_sure"]
    assert "Not certain" in verdict["text"] and verdict["low"] <= 0
    failure = world.failure(case)
    assert failure.blamed_message == before and failure.evidence[-1]["confidence"] == "hint"


def test_without_a_success_it_says_what_to_do(world: World, version: ModelVersion) -> None:
    search = started(world, world.body(world.cases[3], version))
    ended(outcome(search, {search.spec["steps"][0]: 0}))
    verdict = world.api.get("evals_api:step_search", search.pk).json()["verdict"]
    assert verdict["step"] is None and "Choose a better model" in verdict["text"]
    assert not any(one["rule"] == "replay" for one in world.failure(world.cases[3]).evidence)


def test_steps_after_a_difference_are_no_candidates(world: World, version: ModelVersion) -> None:
    search = started(world, world.body(world.cases[3], version))
    steps = search.spec["steps"][:2]
    places = [search.spec["places"].index(step) for step in steps]
    difference = {"steps": places, "differs_at": places[1], "difference": "It says “B”."}
    ended(outcome(search, dict.fromkeys(steps, 8), **difference))
    told = world.api.get("evals_api:step_search", search.pk).json()
    assert [one["step"] for one in told["values"]] == steps
    assert not told["verdict"]["is_sure"] and "responds differently" in told["verdict"]["text"]
    assert told["differs_at"] == steps[1]
    browser = Client()
    browser.force_login(admin_of(world.project))
    assert "It says “B”." in browser.get(search.get_absolute_url()).content.decode()


def test_a_lost_attempt_is_continued_with_what_it_had(world: World, version: ModelVersion) -> None:
    search = started(world, world.body(world.cases[3], version))
    first = search.spec["steps"][0]
    outcome(search, {first: 3}, 5)
    outcome(search, {first: 3}, 5)  # the same events again
    spec = find_step_spec(search)
    assert [(one.step, one.successes, one.n) for one in spec.tried] == [(0, 3, 5)]
    wanted = next_try(spec.steps, {0: Tried(3, 5)}, spec.each)
    assert (wanted.step, wanted.n) == (0, 3)
    assert spec.environment.harness.temperature == 1.0 and spec.recorded[0]["role"] == "assistant"


def test_a_run_that_cannot_be_replayed_says_why(world: World, version: ModelVersion) -> None:
    case, project = world.cases[0], world.project
    unknown = fail(project, planted(99))
    classify_project(project=project)
    number = Failure.objects.get(trajectory=unknown).pk
    assert "Make an eval task" in refused(world, world.body(case, version, failure=number))
    silent = make_trajectory(
        project, messages=[{"role": "user", "content": "Hello?"}], outcome={"status": "failure"}
    )
    classify_project(project=project)
    number = Failure.objects.get(trajectory=silent).pk
    assert "took no step" in refused(world, world.body(case, version, failure=number))
    task = Task.objects.get(eval_set=world.set, key=world.cases[1].name)
    assert "does not begin with" in refused(world, world.body(case, version, task=str(task.pk)))
    cold = office(project, temperature=0.0)
    body = world.body(case, version, environment=str(cold))
    assert "temperature" in refused(world, body)
    assert started(world, body | {"temperature": 0.5}).spec["temperature"] == 0.5
    assert "already running" in refused(world, world.body(case, version))


def test_ground_truth_in_the_log_takes_the_place_of_a_task(
    world: World, version: ModelVersion
) -> None:
    case = planted(98)
    row = make_trajectory(
        world.project,
        id=case.name,
        messages=[{"role": "user", "content": case.request}, *case.messages],
        metadata={"expected_calls": case.calls},
        outcome={"status": "failure"},
    )
    classify_project(project=world.project)
    failure = Failure.objects.get(trajectory=row)
    search = started(world, world.body(case, version, failure=failure.pk))
    assert search.task is None and "ground truth" in search.spec["scored_by"]
    assert find_step_spec(search).task["expected"] == {"calls": case.calls}


def test_a_held_out_run_is_not_replayed_and_the_refusal_is_counted(
    world: World, version: ModelVersion
) -> None:
    case = planted(97)
    row = fail(world.project, case)
    classify_project(project=world.project)
    add_task(world, case, Split.HOLDOUT)
    failure = Failure.objects.get(trajectory=row)
    before = HoldoutView.objects.count()
    body = world.body(case, version, failure=failure.pk)
    assert "hold-out" in refused(world, body)
    assert HoldoutView.objects.count() > before
    member = Client()
    member.force_login(admin_of(world.project))
    page = member.get(reverse("evals:find_step", args=[world.project.slug, failure.pk]))
    assert "belongs to a hold-out" in page.content.decode()


def test_a_successful_continuation_is_a_suggested_answer_and_a_preference_pair(
    world: World, version: ModelVersion
) -> None:
    case = world.cases[0]
    assert case.kind == "wrong value"
    right = step_of(case)
    wrong = case.messages[right - 1]["tool_calls"][0]["function"]
    gold = next(
        call
        for call in case.calls
        if call["tool"] == wrong["name"]
        and sum(
            call["args"][name] != value for name, value in json.loads(wrong["arguments"]).items()
        )
        == 1
    )
    good = [tool_message(gold), {"role": "tool", "tool_call_id": "call_1", "content": "Done."}]
    found(world, case, version, [*good, *BETTER])
    row = world.failure(case).trajectory
    suggested = next(suggestions(step_at(read_run(row), right)))
    assert (suggested.source, suggested.expected["calls"]) == (REPLAYED, [gold])
    proposed = plan_of(read_run(row), right)
    assert proposed and proposed.answer, "bulk-made tasks expect what the continuation changed"
    assert (proposed.step.cut, proposed.answer.source) == (right, REPLAYED)
    assert proposed.answer.expected["calls"] == [gold]
    made = find_examples(eval_set=world.set, shape="pairs", sources=[Source.REPLAYS])
    (pair,) = made.examples
    assert json.loads(pair.data["chosen"]) == gold
    assert json.loads(pair.data["rejected"])["args"] == json.loads(wrong["arguments"])
    assert pair.data["messages"][-1] != case.messages[right - 1]
    world.set.tasks.filter(key=case.name).delete()
    add_task(world, case, Split.HOLDOUT)
    again = find_examples(eval_set=world.set, shape="pairs", sources=[Source.REPLAYS])
    assert not again.examples and again.left_out[HELD_OUT]


def test_it_is_stopped_and_keeps_what_it_has(world: World, version: ModelVersion) -> None:
    search = started(world, world.body(world.cases[3], version))
    outcome(search, {search.spec["steps"][0]: 6})
    told = world.api.post("evals_api:step_search_cancel", search.pk).json()
    assert told["state"] == "cancelled" and told["values"][0]["successes"] == 6
    assert not told["verdict"]["is_sure"] and "stopped" in told["verdict"]["text"]


def test_its_pages_show_the_price_the_steps_and_a_continuation(
    world: World, version: ModelVersion
) -> None:
    case, project = world.cases[0], world.project
    failure, browser = world.failure(case), Client()
    browser.force_login(admin_of(project))

    def page(route: str, *args: Any, **query: Any) -> str:
        got = browser.get(reverse(route, args=[project.slug, *args]), query)
        assert got.status_code == 200, got.content
        return " ".join(got.content.decode().split())

    assert "Find the step by replay" in page("evals:failure_searches", failure.pk)
    with patch("apps.evals.replays.episode.read_run", wraps=read_run) as reading:
        form = page("evals:find_step", failure.pk)
    assert reading.call_count == 1
    assert "Up to about" in form and "continuations over" in form and "no known price" in form
    more = page(
        "evals:find_step", failure.pk, environment=world.environment.pk, each=64, every="on"
    )
    assert "640 continuations" not in form and "768 continuations" in more
    sent = {"environment": world.environment.pk, "model_version": version.pk, "each": 8, "seed": 0}
    url = reverse("evals:find_step", args=[project.slug, failure.pk])
    moved = browser.post(url, sent)
    search = failure.step_searches.get()
    assert moved.url == search.get_absolute_url()
    assert "No successful continuation yet" in page("evals:step_search", search.pk)
    right = step_of(case)
    values = {right: 16} | ({there: 0} if (there := after(search, right)) else {})
    ended(outcome(search, values, 16))
    shown = page("evals:step_search", search.pk)
    assert "decisive" in shown and "Better." in shown and f"cut={right}" in shown
    assert "decisive" in page("evals:failure_searches", failure.pk)
    stranger = Client()
    stranger.force_login(make_member(make_project()))
    assert stranger.get(search.get_absolute_url()).status_code == 404
