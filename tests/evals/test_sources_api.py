"""Tasks over REST from production, from one failure, from an evaluation: the same actions and rules
as the pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.actions import create_api_key
from apps.core.models import Role
from apps.core.scopes import Scope
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Origin, Split
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure, FailureState
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import (
    admin_of,
    key_headers,
    make_eval_set,
    make_failed,
    make_project,
    make_trajectory,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
WAYS = ("from_production", "from_failure", "from_evaluation", "general")
RIGHT = {"tool": "tickets.close", "args": {"id": 9001}}


def made_draft(_: Path) -> tuple[EvalSet, dict[str, str]]:
    draft = make_eval_set(make_project(), train=0, holdout=0, frozen=False)
    return draft, key_headers(draft.project)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_draft)


@pytest.fixture
def world(kept: Any, db: None, settings: Any) -> tuple[EvalSet, dict[str, str]]:
    return copied(kept, settings)


@pytest.fixture
def draft(world: tuple[EvalSet, dict[str, str]]) -> EvalSet:
    return world[0]


@pytest.fixture
def key(world: tuple[EvalSet, dict[str, str]]) -> dict[str, str]:
    return world[1]


def post(name: str, key: dict, draft: EvalSet, data: Any = None) -> Any:
    url = reverse(f"evals_api:{name}", args=[draft.pk])
    return Client().post(url, json.dumps(data or {}), content_type="application/json", **key)


def look(key: dict, draft: EvalSet, **query: Any) -> Any:
    return Client().get(reverse("evals_api:from_failure", args=[draft.pk]), query, **key)


# From production


def test_failures_and_successes_become_tasks_by_filters(draft: EvalSet, key: dict) -> None:
    project = draft.project
    for number in (9001, 9002):
        make_failed(project, request=f"Close ticket {number}.", agent={"name": "a"})
    make_failed(project, request="Close ticket 9003.", agent={"name": "b"})
    make_trajectory(
        project,
        request="Water hall 9.",
        call={"tool": "plants.water", "args": {"hall": 9}},
        outcome={"status": "success"},
    )
    mine = post(
        "from_production",
        key,
        draft,
        {"outcome": "failure", "where": {"agent": "a"}, "split": "validation"},
    )
    assert mine.status_code == 201
    assert mine.json() == {
        "made": 2,
        "duplicates": 0,
        "left_out": 0,
        "rejected": [],
        "without_expected": 0,
    }
    assert {task.split for task in draft.tasks.all()} == {Split.VALIDATION}
    rest = post("from_production", key, draft, {"outcome": "success", "split": "regression"}).json()
    assert rest["made"] == 1 and draft.tasks.get(split="regression").origin == Origin.SUCCESS
    again = post("from_production", key, draft)
    assert again.status_code == 201 and (again.json()["made"], again.json()["duplicates"]) == (1, 3)


def test_runs_are_named_by_their_ids_and_say_what_is_missing(draft: EvalSet, key: dict) -> None:
    run = make_failed(draft.project, request="Close ticket 9001.")
    make_failed(draft.project, request="Close ticket 9002.")
    silent = make_trajectory(draft.project, outcome={"status": "failure"})
    said = post(
        "from_production", key, draft, {"trajectories": [run.external_id, silent.external_id]}
    ).json()
    assert (said["made"], said["without_expected"]) == (
        1,
        1,
    ) and draft.tasks.get().trajectory == run
    foreign = make_failed(make_project())
    gone = post("from_production", key, draft, {"trajectories": [foreign.external_id]})
    assert gone.status_code == 404 and foreign.external_id in gone.json()["detail"]


def test_a_dismissed_failure_becomes_no_task(draft: EvalSet, key: dict) -> None:
    run = make_failed(draft.project)
    classify_project(project=draft.project)
    Failure.objects.update(state=FailureState.DISMISSED)
    assert (
        post("from_production", key, draft, {"trajectories": [run.external_id]}).json()["made"] == 0
    )


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    "data",
    [
        {"outcome": "unknown"},
        {"where": {"agnet": "a"}},
        {"where": {"since": "1y"}},
        {"split": "general"},
        {"trajectories": []},
        {"trajectories": ["a"], "where": {"agent": "a"}},
        {"x": 1},
    ],
)
def test_a_filter_that_there_is_not_selects_nothing(draft: EvalSet, key: dict, data: dict) -> None:
    make_failed(draft.project)
    assert post("from_production", key, draft, data).status_code == 400 and not draft.tasks.exists()


def test_what_is_held_out_is_left_out_and_counted_for_the_key(draft: EvalSet, key: dict) -> None:
    held = make_eval_set(draft.project, train=0, holdout=1).tasks.get()
    run = make_failed(draft.project, request=held.messages[0]["content"])
    said = post("from_production", key, draft, {"trajectories": [run.external_id]})
    assert said.status_code == 200 and said.json()["left_out"] == 1
    view = HoldoutView.objects.get()
    assert view.kind == HoldoutView.Kind.MEMBERSHIP and view.api_key.name == "test"


# From one failure


@pytest.fixture
def failure(draft: EvalSet) -> Failure:
    run = make_failed(draft.project, request="Close ticket 9001.", session_id="s-1")
    classify_project(project=draft.project)
    return Failure.objects.get(trajectory=run)


def test_a_failure_is_looked_at_and_then_becomes_a_confirmed_task(
    draft: EvalSet, key: dict, failure: Failure
) -> None:
    name = failure.trajectory.external_id
    seen = look(key, draft, trajectory=name).json()
    assert seen["cut"] in seen["steps"] and seen["request"][-1]["content"] == "Close ticket 9001."
    assert seen["suggestions"][0]["expected"] == RIGHT and seen["groups"]["session"] == "s-1"
    made = post(
        "from_failure",
        key,
        draft,
        {"trajectory": name, "expected": RIGHT, "group": "session", "split": "train"},
    )
    assert made.status_code == 201 and made.json()["made"] == 1
    task = draft.tasks.get()
    assert (task.group, task.expected, task.confirmed_by) == ("s-1", RIGHT, admin_of(draft.project))
    failure.refresh_from_db()
    assert failure.state == FailureState.CONFIRMED
    again = post("from_failure", key, draft, {"trajectory": name, "expected": RIGHT})
    assert again.status_code == 200 and again.json()["duplicates"] == 1


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "changes",
    [
        {"expected": {}},
        {"expected": "x"},
        {"expected": {"tool": 1}},
        {"cut": 77},
        {"cut": -1},
        {"group": "moon"},
        {"state": [{"path": 1}]},
        {"split": "general"},
        {"trajectory": ""},
    ],
)
def test_a_task_that_makes_no_sense_is_refused(
    draft: EvalSet, key: dict, failure: Failure, changes: dict
) -> None:
    data = {"trajectory": failure.trajectory.external_id, "expected": RIGHT} | changes
    assert post("from_failure", key, draft, data).status_code == 400 and not draft.tasks.exists()
    failure.refresh_from_db()
    assert failure.state == FailureState.OPEN


def test_only_failures_of_the_project_and_steps_of_the_run_are_looked_at(
    draft: EvalSet, key: dict, failure: Failure
) -> None:
    name = failure.trajectory.external_id
    assert look(key, draft, trajectory=name, cut=1).status_code == 200
    for cut in (0, 99, "x"):
        assert look(key, draft, trajectory=name, cut=cut).status_code == 400
    for nothing in ("", "no-such-run", make_trajectory(draft.project).external_id):
        assert look(key, draft, trajectory=nothing).status_code == (404 if nothing else 400)
    elsewhere = make_eval_set(make_project(), frozen=False)
    assert look(key_headers(elsewhere.project), elsewhere, trajectory=name).status_code == 404


def test_a_look_at_a_run_that_is_held_out_is_counted(
    draft: EvalSet, key: dict, failure: Failure
) -> None:
    name = failure.trajectory.external_id
    other = make_eval_set(draft.project, train=0, holdout=0, frozen=False)
    assert (
        post(
            "from_failure", key, other, {"trajectory": name, "expected": RIGHT, "split": "holdout"}
        ).status_code
        == 201
    )
    assert not HoldoutView.objects.exists()
    assert look(key, draft, trajectory=name).status_code == 200
    assert HoldoutView.objects.get().api_key.name == "test"
    left = post("from_failure", key, draft, {"trajectory": name, "expected": RIGHT})
    assert (
        left.status_code == 200
        and left.json()["left_out"] == 1
        and HoldoutView.objects.count() == 2
    )


# From an evaluation


@pytest.fixture(scope="module")
def kept_run(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda folder: evaluated(frozen_set(train=3), [0, 2, 4], folder))


@pytest.fixture
def run(kept_run: Any, db: None, settings: Any) -> EvalRun:
    return copied(kept_run, settings)


def test_failures_of_an_evaluation_become_tasks(run: EvalRun) -> None:
    draft, key = (
        make_eval_set(run.project, train=0, holdout=0, frozen=False),
        key_headers(run.project),
    )
    first = run.samples.filter(success=False).order_by("task_key", "index").first()
    one = post(
        "from_evaluation", key, draft, {"run": str(run.pk), "sample": first.pk, "begin": "whole"}
    )
    assert one.status_code == 201 and [task.messages for task in draft.tasks.all()] == [
        first.task.messages
    ]
    rest = post("from_evaluation", key, draft, {"run": str(run.pk)}).json()
    assert (rest["made"], rest["duplicates"]) == (1, 1)
    assert {task.split for task in draft.tasks.all()} == {Split.TRAIN}


def test_the_filters_of_samples_choose(run: EvalRun, tmp_path: Path) -> None:
    draft, key = (
        make_eval_set(run.project, train=0, holdout=0, frozen=False),
        key_headers(run.project),
    )
    before = evaluated(run.eval_set, [4, 2, 4], tmp_path)
    where = {"against": str(before.pk), "change": "regressed"}
    assert (
        post("from_evaluation", key, draft, {"run": str(run.pk), "where": where}).json()["made"]
        == 1
    )
    none = post("from_evaluation", key, draft, {"run": str(run.pk), "where": {"outcome": "masked"}})
    assert none.status_code == 200 and none.json()["made"] == 0


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("data", "status"),
    [
        ({"run": "x"}, 404),
        ({}, 400),
        ({"sample": 0}, 404),
        ({"sample": 10**25}, 404),
        ({"begin": "end"}, 400),
        ({"where": {"outcome": "x"}}, 400),
        ({"where": {"buckt": "x"}}, 400),
        ({"where": {"change": "same"}}, 400),
        ({"where": {"against": "6f0c3c1e-7c0d-4b0e-9d3a-2f5a1b1f9a11"}}, 404),
    ],
)
def test_what_makes_no_sense_of_an_evaluation_is_refused(
    run: EvalRun, data: dict, status: int
) -> None:
    draft, key = (
        make_eval_set(run.project, train=0, holdout=0, frozen=False),
        key_headers(run.project),
    )
    sent = ({"run": str(run.pk)} | data) if data else {}
    assert (
        post("from_evaluation", key, draft, sent).status_code == status and not draft.tasks.exists()
    )


@pytest.mark.parametrize("split", [Split.HOLDOUT, Split.REGRESSION, Split.GENERAL])
def test_what_measures_becomes_no_task(run: EvalRun, split: Split) -> None:
    draft, key = (
        make_eval_set(run.project, train=0, holdout=0, frozen=False),
        key_headers(run.project, True),
    )
    EvalRun.objects.filter(pk=run.pk).update(split=split)
    answer = post("from_evaluation", key, draft, {"run": str(run.pk)})
    assert (
        answer.status_code == 409
        and "reach its training" in answer.json()["detail"]
        and not draft.tasks.exists()
    )


# All of them


def test_the_general_tasks_are_added_once(draft: EvalSet, key: dict) -> None:
    made = post("general", key, draft)
    assert (
        made.status_code == 201
        and made.json()["made"] == draft.tasks.filter(split=Split.GENERAL).count() > 50
    )
    assert post("general", key, draft).json()["made"] == 0


@pytest.mark.parametrize("name", WAYS)
def test_who_may_add_and_to_what(name: str, run: EvalRun, tmp_path: Path) -> None:
    project = run.project
    failed = make_failed(project, request="Close ticket 9001.")
    classify_project(project=project)
    data = {
        "from_failure": {"trajectory": failed.external_id, "expected": RIGHT},
        "from_evaluation": {"run": str(run.pk)},
    }.get(name, {})
    draft, frozen = make_eval_set(project, train=0, holdout=0, frozen=False), make_eval_set(project)
    key, foreign = key_headers(project), make_eval_set(make_project(), frozen=False)
    assert post(name, {}, draft, data).status_code == 401
    assert post(name, key, foreign, data).status_code == 404
    refused = post(name, key, frozen, data)
    assert refused.status_code == 409 and "is frozen" in refused.json()["detail"]
    reader = create_api_key(
        project=project, name="r", by=admin_of(project), scopes=[Scope.READ, Scope.EVALUATE]
    )[1]
    assert post(name, {"HTTP_AUTHORIZATION": f"Bearer {reader}"}, draft, data).status_code == 403
    project.memberships.update(role=Role.VIEWER)
    assert post(name, key, draft, data).status_code == 403 and not draft.tasks.exists()
