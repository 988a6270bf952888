"""Eval sets over REST: the key decides the project; a hold-out is told only when asked for, and that is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.evals.models import EvalSet, Origin
from tests.factories import key_headers, make_eval_set, make_project

pytestmark = pytest.mark.django_db


@pytest.fixture
def draft() -> EvalSet:
    return make_eval_set(make_project(), frozen=False)


@pytest.fixture
def key(draft: EvalSet) -> dict[str, str]:
    return key_headers(draft.project)


def get(name: str, key: dict, *args: Any, **query: Any) -> Any:
    return Client().get(reverse(f"evals_api:{name}", args=args), query, **key)


def post(draft: EvalSet, key: dict, data: Any, content_type: str = "application/json") -> Any:
    body = data if isinstance(data, bytes) else json.dumps(data)
    return Client().post(reverse("evals_api:tasks", args=[draft.pk]), body, content_type=content_type, **key)


def row(number: int = 0, **changes: Any) -> dict:
    return {"messages": [{"role": "user", "content": f"Archive thread {number} now."}],
            "expected": {"tool": "threads.archive", "args": {"id": number}}} | changes  # fmt: skip


def test_sets_are_listed_with_their_counts(draft: EvalSet, key: dict) -> None:
    found = get("sets", key).json()["results"]
    assert [one["id"] for one in found] == [str(draft.pk)] and found[0]["counts"] == {"train": 3, "holdout": 3}


def test_a_holdout_is_masked_until_it_is_asked_for(draft: EvalSet, key: dict) -> None:
    secret = draft.tasks.holdout().first().messages[0]["content"]
    masked = get("set", key, draft.pk)
    assert secret not in masked.content.decode() and draft.holdout_views.count() == 0
    assert [set(task) for task in masked.json()["tasks"] if task["split"] == "holdout"] == [{"key", "split"}] * 3
    refused = get("set", key, draft.pk, holdout="1")
    assert (
        refused.status_code == 403 and secret not in refused.content.decode() and "Settings" in refused.json()["detail"]
    )
    key = key_headers(draft.project, may_see_holdout=True)
    told = get("set", key, draft.pk, holdout="1")
    assert secret in told.content.decode() and draft.holdout_views.count() == 1
    assert get("set", key, draft.pk, holdout="1", split="train").status_code == 200 and draft.holdout_views.count() == 1


def test_pages(draft: EvalSet, key: dict) -> None:
    first = get("set", key, draft.pk, limit=4).json()
    assert len(first["tasks"]) == 4 and first["next"] == 4
    assert len(get("set", key, draft.pk, offset=4).json()["tasks"]) == 2
    assert get("set", key, draft.pk, limit="x").status_code == 400 == get("set", key, draft.pk, split="x").status_code


def test_good_rows_are_stored_though_others_are_bad(draft: EvalSet, key: dict) -> None:
    response = post(draft, key, [row(1), {"messages": []}, row(2, key="mine", split="validation"), row(1)])
    said = response.json()
    assert response.status_code == 201 and said["made"] == 2 and len(said["rejected"]) == 2
    assert [item["line"] for item in said["rejected"]] == [2, 4]
    task = draft.tasks.get(key="mine")
    assert task.origin == Origin.IMPORTED and task.split == "validation"
    assert post(draft, key, [row(1)]).json()["duplicates"] == 1


def test_json_lines(draft: EvalSet, key: dict) -> None:
    lines = b"\n".join(json.dumps(row(number)).encode() for number in (5, 6))
    assert post(draft, key, lines, "application/x-ndjson").json()["made"] == 2


def test_what_is_near_a_holdout_is_left_out(draft: EvalSet, key: dict) -> None:
    held = draft.tasks.holdout().first()
    near = row(messages=[{"role": "user", "content": f"Please, {held.messages[0]['content']}"}], expected=held.expected)
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
