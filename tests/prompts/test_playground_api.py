"""Playgrounds over REST: started, polled, cancelled, listed; never on what is held out; what is
good is kept.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.actions import create_api_key
from apps.core.models import Role
from apps.core.scopes import Scope
from apps.evals import actions as evals
from apps.evals.models import HoldoutView, Split
from apps.prompts.models import Playground, PlaygroundAnswer
from apps.prompts.playground import Side, Step
from apps.registry.actions import register_agent
from apps.registry.models import ModelVersion
from tests.factories import admin_of, key_headers, make_eval_set, make_project
from tests.prompts.test_playground import GOOD, World, finished, live, world

__all__ = ["live", "world"]
RIGHT = {"tool": "tickets.close", "args": {"id": 1234}}


def post(key: dict, name: str, *args: Any, data: Any = None) -> Any:
    url = reverse(f"prompts_api:{name}", args=args)
    return Client().post(url, json.dumps(data or {}), content_type="application/json", **key)


def get(key: dict, name: str, *args: Any, **query: Any) -> Any:
    return Client().get(reverse(f"prompts_api:{name}", args=args), query, **key)


def asked(world: World, **changes: Any) -> dict[str, Any]:
    keys = list(world.set.tasks.filter(split=Split.TRAIN).values_list("key", flat=True))
    return {
        "environment": str(world.environment),
        "eval_set": str(world.set),
        "tasks": keys[:2],
        "sides": [{"version": str(world.model)}],
    } | changes


def replayed(world: World, **changes: Any) -> dict[str, Any]:
    return {
        "environment": str(world.environment),
        "trajectory": world.run().external_id,
        "step": 2,
        "expected": RIGHT,
        "sides": [{"version": str(world.model), "changes": {"system_prompt": GOOD}}],
    } | changes


def test_versions_are_asked_polled_and_the_better_prompt_is_kept(live: World) -> None:
    key = key_headers(live.project)
    sides = [
        {"version": str(live.model)},
        {"version": live.model.pk, "changes": {"system_prompt": GOOD}},
    ]
    started = post(key, "playgrounds", data=asked(live, sides=sides, samples_per_task=2))
    assert started.status_code == 201 and (started.json()["state"], started.json()["total"]) == (
        "queued",
        8,
    )
    run = Playground.objects.get(pk=started.json()["id"])
    finished(run)
    seen = get(key, "playground", run.pk).json()
    assert seen["state"] == "succeeded" and [
        (side["passed"], side["scored"]) for side in seen["sides"]
    ] == [
        (0, 4),
        (4, 4),
    ]
    assert [case["key"] for case in seen["cases"]] == asked(live)["tasks"] and len(
        seen["cases"][0]["answers"]
    ) == 4
    assert seen["sides"][1]["prompt"] == {"system_prompt": GOOD}
    kept = post(key, "playground_save_prompt", run.pk, data={"side": 1, "name": "kept"})
    assert kept.status_code == 201 and kept.json()["prompt"] == {"system_prompt": GOOD}
    assert (
        post(key, "playground_save_prompt", run.pk, data={"side": 1, "name": "kept"}).status_code
        == 200
    )
    for wrong in (
        {"side": 2, "name": "a"},
        {"side": 1, "name": "a b"},
        {"side": 1},
        {"side": -1, "name": "a"},
    ):
        assert post(key, "playground_save_prompt", run.pk, data=wrong).status_code == 400
    assert ModelVersion.objects.get(name="kept").lineage["playground"] == str(run.pk)
    assert post(key, "playground_cancel", run.pk).status_code == 409
    tasks = {"eval_set": str(make_eval_set(live.project, frozen=False)), "expected": RIGHT}
    assert post(key, "playground_save_task", run.pk, data=tasks).status_code == 409


@pytest.mark.proof
def test_what_is_written_of_an_answer_is_told_until_the_answer_is_there(world: World) -> None:
    run, key = world.start(Side(world.model), Side(world.model)), key_headers(world.project)
    assert run.claim("test")
    case, call = run.spec["cases"][0]["id"], {"name": "tickets.close", "arguments": '{"id'}
    place, written = (
        {"side": 1, "task_id": case, "index": 0},
        {"text": "Fir", "thought": "Hm", "calls": [call]},
    )
    runner.store(run, [{"type": "partial", "seq": 1} | place | written])
    first, *others = get(key, "playground", run.pk).json()["cases"]
    assert (
        first["partial"] == [{"side": 1, "index": 0, "is_live": True} | written]
        and not first["answers"]
        and not any(other["partial"] for other in others)
    )
    runner.store(
        run,
        [
            {"type": "sample", "seq": 2, "output": "First", "reward": 1.0, "stop_reason": "stop"}
            | place
        ],
    )
    first = get(key, "playground", run.pk).json()["cases"][0]
    assert not first["partial"] and first["answers"][0]["output"] == "First"


def test_a_step_of_a_run_becomes_a_task(world: World) -> None:
    key, draft = key_headers(world.project), make_eval_set(world.project, frozen=False)
    started = post(key, "playgrounds", data=replayed(world))
    assert started.status_code == 201, started.content
    pk = started.json()["id"]
    data = {"eval_set": str(draft), "expected": RIGHT, "split": "validation"}
    assert (
        post(key, "playground_save_task", pk, data=data | {"expected": {"tool": "x"}}).status_code
        == 400
    )
    assert (
        post(key, "playground_save_task", pk, data=data | {"split": "holdout"}).status_code == 400
    )
    made = post(key, "playground_save_task", pk, data=data)
    assert (
        made.status_code == 201
        and draft.tasks.get(trajectory__isnull=False).split == Split.VALIDATION
    )
    assert post(key, "playground_save_task", pk, data=data).json()["duplicates"] == 1
    frozen = post(key, "playground_save_task", pk, data=data | {"eval_set": str(world.set)})
    assert frozen.status_code == 409 and "is frozen" in frozen.json()["detail"]


def test_playgrounds_are_listed_in_pages_and_cancelled(world: World) -> None:
    key = key_headers(world.project)
    runs = [world.start() for _ in range(3)]
    first = get(key, "playgrounds", limit=2).json()
    assert [one["id"] for one in first["results"]] == [str(runs[2].pk), str(runs[1].pk)]
    last = get(key, "playgrounds", cursor=first["next"]).json()
    assert [one["id"] for one in last["results"]] == [str(runs[0].pk)] and last["next"] is None
    cancelled = post(key, "playground_cancel", runs[0].pk)
    assert cancelled.status_code == 200 and cancelled.json()["state"] == "cancelled"
    assert len(get(key, "playgrounds", state="queued").json()["results"]) == 2
    assert (
        get(key, "playgrounds", state="x").status_code
        == 400
        == get(key, "playgrounds", cursor="x").status_code
    )


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"sides": []}, 400),
        ({"sides": [{"version": "no-v1"}]}, 404),
        ({"environment": "no@1"}, 404),
        ({"eval_set": "no@1"}, 404),
        ({"tasks": ["no"]}, 404),
        ({"tasks": []}, 409),
        ({"trajectory": "a"}, 400),
        ({"eval_set": None}, 400),
        ({"samples_per_task": 9}, 400),
        ({"most_usd": 0}, 400),
        ({"x": 1}, 400),
        ({"sides": [{"version": "m-v1", "changes": {"system": 1}}]}, 409),
        ({"sides": [{"version": "m-v1", "engine": "no"}]}, 409),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(world: World, changes: dict, status: int) -> None:
    assert (
        post(key_headers(world.project), "playgrounds", data=asked(world, **changes)).status_code
        == status
    )
    assert not Playground.objects.exists()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"trajectory": "no"}, 404),
        ({"step": None}, 400),
        ({"step": 1}, 409),
        ({"expected": {"tool": "x"}}, 400),
    ],
    ids=str,
)
def test_a_step_that_there_is_not_is_refused(world: World, changes: dict, status: int) -> None:
    assert (
        post(key_headers(world.project), "playgrounds", data=replayed(world, **changes)).status_code
        == status
    )


def test_an_agent_is_no_side(world: World) -> None:
    agent = register_agent(project=world.project, name="agent", agent_version="1", by=world.by)
    sides = [{"version": agent.pk}]
    answer = post(key_headers(world.project), "playgrounds", data=asked(world, sides=sides))
    assert answer.status_code == 400 and answer.json()["path"] == "sides[0].version"


def test_a_held_out_task_is_not_asked_and_its_key_is_not_told(world: World) -> None:
    held = world.set.tasks.holdout().first()
    said = [
        post(key_headers(world.project), "playgrounds", data=asked(world, tasks=[name]))
        .json()["detail"]
        .replace(name, "")
        for name in (held.key, "no-such")
    ]
    assert said[0] == said[1] and not Playground.objects.exists()


def test_a_step_that_is_held_out_is_refused_and_counted(world: World) -> None:
    data = replayed(world)
    held = make_eval_set(world.project, train=0, holdout=0, frozen=False)
    evals.add_task(
        eval_set=held,
        key="k",
        request="Close ticket 1234.",
        expected=RIGHT,
        split=Split.HOLDOUT,
        by=world.by,
    )
    answer = post(key_headers(world.project), "playgrounds", data=data)
    assert answer.status_code == 409 and "never runs on what is held out" in answer.json()["detail"]
    assert HoldoutView.objects.get().api_key.name == "test" and not Playground.objects.exists()


def test_what_was_held_out_since_needs_the_right_and_is_counted(world: World) -> None:
    run = world.start(Side(world.model), step=Step(world.run(), 2, RIGHT))
    held = make_eval_set(world.project, train=0, holdout=0, frozen=False)
    evals.add_task(
        eval_set=held,
        key="k",
        request="Close ticket 1234.",
        expected=RIGHT,
        split=Split.HOLDOUT,
        by=world.by,
    )
    shut = get(key_headers(world.project), "playground", run.pk)
    assert shut.status_code == 403 and "Close ticket" not in shut.content.decode()
    assert HoldoutView.objects.get().kind == HoldoutView.Kind.MEMBERSHIP
    opened = get(key_headers(world.project, may_see_holdout=True), "playground", run.pk)
    assert opened.status_code == 200 and HoldoutView.objects.count() == 2
    draft = make_eval_set(world.project, frozen=False)
    data = {"eval_set": str(draft), "expected": RIGHT}
    left = post(key_headers(world.project), "playground_save_task", run.pk, data=data)
    assert (
        left.status_code == 200
        and left.json()["left_out"] == 1
        and HoldoutView.objects.count() == 3
    )


def test_a_key_that_may_only_evaluate_reads_no_run(world: World) -> None:
    data = replayed(world)
    run = world.start(Side(world.model), step=Step(world.run(), 2, RIGHT))
    only = create_api_key(project=world.project, name="ci", by=world.by, scopes=[Scope.EVALUATE])[1]
    key = {"HTTP_AUTHORIZATION": f"Bearer {only}"}
    assert (
        post(key, "playgrounds", data=data).status_code
        == 403
        == get(key, "playground", run.pk).status_code
    )
    tasks = post(key, "playgrounds", data=asked(world))
    assert (
        tasks.status_code == 201 and get(key, "playground", tasks.json()["id"]).status_code == 200
    )
    run.trajectory.delete()
    assert get(key, "playground", run.pk).status_code == 403
    kept = post(
        key_headers(world.project),
        "playground_save_task",
        run.pk,
        data={"eval_set": str(make_eval_set(world.project, frozen=False)), "expected": RIGHT},
    )
    assert kept.status_code == 409 and "was deleted" in kept.json()["detail"]


def test_who_may_start_and_see_one(world: World) -> None:
    run, key, stranger = world.start(), key_headers(world.project), key_headers(make_project())
    PlaygroundAnswer.objects.create(
        playground=run, side=0, case=run.spec["cases"][0]["id"], index=0, output="x", reward=0.0
    )
    assert get({}, "playground", run.pk).status_code == 401
    assert get(stranger, "playground", run.pk).status_code == 404
    assert get(stranger, "playgrounds").json()["results"] == []
    for name in ("playground_cancel", "playground_save_prompt", "playground_save_task"):
        assert post(stranger, name, run.pk, data={}).status_code == 404
    reader = create_api_key(
        project=world.project, name="r", by=admin_of(world.project), scopes=[Scope.READ]
    )[1]
    assert (
        post(
            {"HTTP_AUTHORIZATION": f"Bearer {reader}"}, "playgrounds", data=asked(world)
        ).status_code
        == 403
    )
    assert (
        get({"HTTP_AUTHORIZATION": f"Bearer {reader}"}, "playground", run.pk).json()["sides"][0][
            "scored"
        ]
        == 1
    )
    world.project.memberships.update(role=Role.VIEWER)
    assert post(key, "playgrounds", data=asked(world)).status_code == 403
    assert post(key, "playground_cancel", run.pk).status_code == 403
