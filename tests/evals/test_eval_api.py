"""Eval sets over REST: the key decides the project; a hold-out is told only when asked for, and
that is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import create_api_key
from apps.core.models import ApiKey, JobState, Role
from apps.core.scopes import Scope
from apps.dashboard.checklist import checklist
from apps.evals.actions import EvalSetError, remove_task
from apps.evals.drafts import freeze
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Origin, Task
from apps.training.actions import freeze_dataset
from apps.training.models import Measurement
from tests.evals.evaluated import evaluated
from tests.factories import (
    admin_of,
    key_headers,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_project,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


def made_draft(_: Path) -> tuple[EvalSet, dict[str, str]]:
    draft = make_eval_set(make_project(), frozen=False)
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


def get(name: str, key: dict, /, *args: Any, **query: Any) -> Any:
    return Client().get(reverse(f"evals_api:{name}", args=args), query, **key)


def post(draft: EvalSet, key: dict, data: Any, content_type: str = "application/json") -> Any:
    body = data if isinstance(data, bytes) else json.dumps(data)
    return Client().post(
        reverse("evals_api:tasks", args=[draft.pk]), body, content_type=content_type, **key
    )


def row(number: int = 0, **changes: Any) -> dict:
    return {
        "messages": [{"role": "user", "content": f"Archive thread {number} now."}],
        "expected": {"tool": "threads.archive", "args": {"id": number}},
    } | changes


def test_sets_are_listed_with_their_counts(draft: EvalSet, key: dict) -> None:
    found = get("sets", key).json()["results"]
    assert [one["id"] for one in found] == [str(draft.pk)] and found[0]["counts"] == {
        "train": 3,
        "holdout": 3,
    }


def test_a_holdout_is_masked_until_it_is_asked_for(draft: EvalSet, key: dict) -> None:
    secret = draft.tasks.holdout().first().messages[0]["content"]
    masked = get("set", key, draft.pk)
    assert secret not in masked.content.decode() and draft.holdout_views.count() == 0
    assert [set(task) for task in masked.json()["tasks"] if task["split"] == "holdout"] == [
        {"key", "split"}
    ] * 3
    refused = get("set", key, draft.pk, holdout="1")
    assert (
        refused.status_code == 403
        and secret not in refused.content.decode()
        and "Settings" in refused.json()["detail"]
    )
    key = key_headers(draft.project, may_see_holdout=True)
    told = get("set", key, draft.pk, holdout="1")
    assert secret in told.content.decode() and draft.holdout_views.count() == 1
    assert (
        get("set", key, draft.pk, holdout="1", split="train").status_code == 200
        and draft.holdout_views.count() == 1
    )


def test_pages(draft: EvalSet, key: dict) -> None:
    first = get("set", key, draft.pk, limit=4).json()
    assert len(first["tasks"]) == 4 and first["next"] == 4
    assert len(get("set", key, draft.pk, offset=4).json()["tasks"]) == 2
    assert (
        get("set", key, draft.pk, limit="x").status_code
        == 400
        == get("set", key, draft.pk, split="x").status_code
    )


def test_good_rows_are_stored_though_others_are_bad(draft: EvalSet, key: dict) -> None:
    response = post(
        draft, key, [row(1), {"messages": []}, row(2, key="mine", split="validation"), row(1)]
    )
    said = response.json()
    assert response.status_code == 201 and said["made"] == 2 and len(said["rejected"]) == 2
    assert [item["line"] for item in said["rejected"]] == [2, 4]
    task = draft.tasks.get(key="mine")
    assert task.origin == Origin.IMPORTED and task.split == "validation"
    assert post(draft, key, [row(1)]).json()["duplicates"] == 1


def test_a_character_that_cannot_be_stored_costs_its_row_only(draft: EvalSet, key: dict) -> None:
    said = post(
        draft, key, [row(1), row(2, demonstration="a\0"), row(3, metadata={"x": "\ud800"})]
    ).json()
    assert said["made"] == 1 and [(item["line"], item["field"]) for item in said["rejected"]] == [
        (2, "demonstration"),
        (3, "metadata"),
    ]


def test_json_lines(draft: EvalSet, key: dict) -> None:
    lines = b"\n".join(json.dumps(row(number)).encode() for number in (5, 6))
    assert post(draft, key, lines, "application/x-ndjson").json()["made"] == 2


def test_what_is_near_a_holdout_is_left_out(draft: EvalSet, key: dict) -> None:
    held = draft.tasks.holdout().first()
    near = row(
        messages=[{"role": "user", "content": f"Please, {held.messages[0]['content']}"}],
        expected=held.expected,
    )
    said = post(draft, key, [near, row(3)]).json()
    assert said["made"] == 1 and said["left_out"] == 1


@pytest.mark.parametrize("data", [b"{", b"\xff", b"1", b'"a"', b"null"])
def test_what_is_no_list_of_tasks_is_told(draft: EvalSet, key: dict, data: bytes) -> None:
    response = post(draft, key, data)
    assert response.status_code == 400 or response.json()["rejected"]
    assert draft.tasks.count() == 6


def test_a_frozen_set_and_one_of_another_project(key: dict, draft: EvalSet) -> None:
    frozen = make_eval_set(draft.project)
    response = post(frozen, key, [row()])
    assert response.status_code == 409 and "frozen" in response.json()["detail"]
    foreign = make_eval_set(make_project(), frozen=False)
    assert post(foreign, key, [row()]).status_code == 404 == get("set", key, foreign.pk).status_code


def change(name: str, key: dict, *args: Any, data: Any = None) -> Any:
    return Client().post(
        reverse(f"evals_api:{name}", args=args),
        json.dumps(data or {}),
        content_type="application/json",
        **key,
    )


def test_a_set_lives_from_its_creation_to_its_next_version(key: dict, draft: EvalSet) -> None:
    made = change("sets", key, data={"name": "support", "description": "Tickets"})
    assert (
        made.status_code == 201 and made.json()["counts"] == {} and made.json()["state"] == "draft"
    )
    support = EvalSet.objects.get(project=draft.project, slug="support")
    assert support.created_by == admin_of(draft.project)
    taken = change("sets", key, data={"name": "support"})
    assert (
        taken.status_code == 409
        and "An eval set named “support” already exists" in taken.json()["detail"]
    )
    empty = change("set_freeze", key, support.pk)
    assert empty.status_code == 409 and "no tasks yet" in empty.json()["detail"]
    assert post(support, key, [row(number) for number in range(100, 110)]).json()["made"] == 10
    split = change(
        "set_split", key, support.pk, data={"holdout_size": 3, "validation_size": 2, "seed": 7}
    )
    assert split.status_code == 200 and split.json()["counts"] == {
        "holdout": 3,
        "train": 5,
        "validation": 2,
    }
    frozen = change("set_freeze", key, support.pk).json()
    assert frozen["state"] == "frozen" and frozen["digest"] and frozen["frozen_at"]
    for name, data in (("set_split", {"holdout_size": 1}), ("set_freeze", {})):
        assert "is frozen" in change(name, key, support.pk, data=data).json()["detail"]
    newer = change("set_version", key, support.pk)
    assert (
        newer.status_code == 201
        and newer.json()["version"] == 2
        and newer.json()["counts"] == split.json()["counts"]
    )
    assert change("set_version", key, support.pk).status_code == 409


def test_a_set_without_a_hold_out_is_frozen_by_choice_and_repaired_until_it_is_used(
    key: dict,
) -> None:
    project = ApiKey.objects.get().project
    alone = make_eval_set(project, train=5, holdout=0, frozen=False)
    with pytest.raises(EvalSetError, match="has no held-out tasks"):
        freeze(eval_set=alone, by=admin_of(project))
    for data in ({}, {"without_holdout": False}):
        refused = change("set_freeze", key, alone.pk, data=data)
        assert refused.status_code == 409 and "has no held-out tasks" in refused.json()["detail"]
    assert change("set_freeze", key, alone.pk, data={"holdout": 0}).status_code == 400
    assert change("set_reopen", key, alone.pk).status_code == 409, "it is a draft"
    frozen = change("set_freeze", key, alone.pk, data={"without_holdout": True}).json()
    assert frozen["state"] == "frozen"
    assert not any(item.done for item in checklist(project) if "hold-out" in item.title)

    again = change("set_reopen", key, alone.pk)
    assert (
        again.status_code == 200
        and again.json()["state"] == "draft"
        and again.json()["digest"] == ""
    )
    assert change("set_split", key, alone.pk, data={"holdout_size": 2}).json()["counts"] == {
        "holdout": 2,
        "train": 3,
    }
    split = change("set_freeze", key, alone.pk).json()
    assert split["state"] == "frozen" and split["digest"] != frozen["digest"]
    assert all(item.done for item in checklist(project) if "hold-out" in item.title)
    held = change("set_reopen", key, alone.pk)
    assert held.status_code == 409 and "has a hold-out" in held.json()["detail"]
    with pytest.raises(IntegrityError), transaction.atomic():  # nor by another way
        EvalSet.objects.filter(pk=alone.pk).update(state="draft", digest="", frozen_at=None)


def test_an_evaluated_set_is_repaired_and_its_evaluation_stays(key: dict, tmp_path: Path) -> None:
    project = ApiKey.objects.get().project
    alone = make_eval_set(project, train=5, holdout=0)
    run = evaluated(alone, [1] * 5, tmp_path)
    newer = change("set_version", key, alone.pk).json()
    refused = change("set_split", key, newer["id"], data={"holdout_size": 2})
    assert refused.status_code == 409 and "reopen" in refused.json()["detail"]
    EvalSet.objects.get(pk=newer["id"]).delete()
    EvalRun.objects.filter(pk=run.pk).update(state=JobState.RUNNING, finished_at=None)
    assert change("set_reopen", key, alone.pk).status_code == 409, "an evaluation is running"
    EvalRun.objects.filter(pk=run.pk).update(
        state=JobState.SUCCEEDED, finished_at=run.finished_at or run.created_at
    )
    assert change("set_reopen", key, alone.pk).status_code == 200
    alone.refresh_from_db()
    with pytest.raises(EvalSetError, match="was evaluated"):
        remove_task(task=alone.tasks.first(), by=admin_of(project))
    split = change("set_split", key, alone.pk, data={"holdout_size": 2})
    assert split.json()["counts"] == {"holdout": 2, "train": 3}
    assert change("set_freeze", key, alone.pk).status_code == 200
    assert run.samples.count() == 20


def test_a_measurement_of_speed_has_trained_nothing_and_blocks_only_while_it_runs(
    key: dict,
) -> None:
    project = ApiKey.objects.get().project
    alone = make_eval_set(project, train=5, holdout=0)
    measurement = Measurement.objects.create(
        project=project,
        name="Training speed",
        parent=make_endpoint(project),
        environment=make_environment(project),
        eval_set=alone,
        key="a",
        state=JobState.RUNNING,
    )
    refused = change("set_reopen", key, alone.pk)
    assert refused.status_code == 409 and "1 measurement" in refused.json()["detail"]
    Measurement.objects.filter(pk=measurement.pk).update(
        state=JobState.SUCCEEDED, finished_at=timezone.now()
    )
    assert change("set_reopen", key, alone.pk).status_code == 200


def test_a_set_that_something_was_made_from_stays_frozen(key: dict) -> None:
    project = ApiKey.objects.get().project
    used = make_eval_set(project, train=5, holdout=0)
    freeze_dataset(eval_set=used, by=admin_of(project))
    refused = change("set_reopen", key, used.pk)
    assert refused.status_code == 409 and "is in use (1 dataset)" in refused.json()["detail"]
    used.refresh_from_db()
    assert used.is_frozen


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"name": "a b"},
        {"name": ""},
        {"name": "a\n"},
        {"name": "a", "x": 1},
        {"name": "a", "description": "a" * 2001},
    ],
)
def test_a_bad_name_or_description_is_refused(key: dict, data: dict) -> None:
    assert change("sets", key, data=data).status_code == 400


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"holdout_size": 0},
        {"holdout_size": "x"},
        {"holdout_size": 1, "seed": -1},
        {"holdout_size": 10**30},
    ],
)
def test_a_bad_division_is_refused(key: dict, draft: EvalSet, data: dict) -> None:
    assert change("set_split", key, draft.pk, data=data).status_code == 400
    assert draft.tasks.holdout().count() == 3


def test_sets_are_paged_from_the_newest_and_found_by_name_and_state(
    key: dict, draft: EvalSet
) -> None:
    newer = [make_eval_set(draft.project), make_eval_set(draft.project)]
    first = get("sets", key, limit=2).json()
    assert [one["id"] for one in first["results"]] == [
        str(newer[1].pk),
        str(newer[0].pk),
    ] and first["next"]
    last = get("sets", key, cursor=first["next"]).json()
    assert [one["id"] for one in last["results"]] == [str(draft.pk)] and last["next"] is None
    assert [one["id"] for one in get("sets", key, state="draft").json()["results"]] == [
        str(draft.pk)
    ]
    assert [one["id"] for one in get("sets", key, name=newer[0].slug).json()["results"]] == [
        str(newer[0].pk)
    ]
    assert get("sets", key, name="no").json()["results"] == []
    assert (
        get("sets", key, state="x").status_code == 400 == get("sets", key, cursor="x").status_code
    )


def remove(draft: EvalSet, key: dict, name: str) -> Any:
    return Client().delete(
        f"{reverse('evals_api:tasks', args=[draft.pk])}?{urlencode({'key': name})}", **key
    )


def test_a_task_is_removed_by_its_key(key: dict, draft: EvalSet) -> None:
    task = draft.tasks.trainable().first()
    assert (
        remove(draft, key, task.key).status_code == 204
        and not draft.tasks.filter(pk=task.pk).exists()
    )
    assert remove(draft, key, task.key).status_code == 404
    assert remove(draft, key, "").status_code == 400 == remove(draft, key, "\x00").status_code
    frozen = make_eval_set(draft.project)
    assert remove(frozen, key, frozen.tasks.trainable().first().key).status_code == 409


def test_a_held_out_task_is_removed_with_the_right_only_and_the_answer_is_counted(
    key: dict, draft: EvalSet
) -> None:
    task = draft.tasks.holdout().first()
    assert (
        remove(draft, key, task.key).status_code == 403 and draft.tasks.filter(pk=task.pk).exists()
    )
    assert HoldoutView.objects.get().kind == HoldoutView.Kind.MEMBERSHIP
    assert (
        remove(draft, key_headers(draft.project, may_see_holdout=True), task.key).status_code == 204
    )


def test_a_refusal_over_its_own_hold_out_is_counted(draft: EvalSet, key: dict) -> None:
    """The sentence says which of the draft's tasks is held out beside one like it, in another
    set.
    """
    held = draft.tasks.holdout().first()
    other = make_eval_set(draft.project, train=1, holdout=0, frozen=False)
    twin = other.tasks.get()
    Task.objects.filter(pk=twin.pk).update(
        messages=[{"role": "user", "content": f"Please, {held.messages[0]['content']}"}]
    )
    response = change("set_freeze", key, draft.pk)
    assert (
        response.status_code == 409
        and held.messages[0]["content"] not in response.json()["detail"].split("”")[1:]
    )
    assert HoldoutView.objects.get().kind == HoldoutView.Kind.MEMBERSHIP


@pytest.mark.parametrize("name", ["set_split", "set_freeze", "set_version"])
def test_who_may_change_a_set(name: str, key: dict, draft: EvalSet) -> None:
    data = {"holdout_size": 1}
    foreign = make_eval_set(make_project(), frozen=False)
    assert change(name, key, foreign.pk, data=data).status_code == 404
    assert change(name, {}, draft.pk, data=data).status_code == 401
    reader = create_api_key(
        project=draft.project, name="r", by=admin_of(draft.project), scopes=[Scope.READ]
    )[1]
    assert (
        change(name, {"HTTP_AUTHORIZATION": f"Bearer {reader}"}, draft.pk, data=data).status_code
        == 403
    )
    draft.project.memberships.update(role=Role.VIEWER)
    for refused in (
        change(name, key, draft.pk, data=data),
        change("sets", key, data={"name": "a"}),
        post(draft, key, [row()]),
    ):
        assert refused.status_code == 403
    draft.refresh_from_db()
    assert not draft.is_frozen and draft.tasks.count() == 6
