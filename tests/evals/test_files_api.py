"""What the pages of sets and evaluations read beside tasks and samples, over REST: files,
differences, learnability.
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
from apps.core.scopes import Scope
from apps.evals import actions, drafts
from apps.evals.models import EvalRun, EvalSet, HoldoutView, Split
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import admin_of, key_headers, make_eval_set, make_project
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


def get(key: dict, name: str, /, *args: Any, **query: Any) -> Any:
    return Client().get(reverse(f"evals_api:{name}", args=args), query, **key)


def text_of(response: Any) -> bytes:
    return b"".join(response.streaming_content)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, lambda _: make_eval_set(make_project(), train=2, holdout=2))


@pytest.fixture
def held(kept: Any, db: None, settings: Any) -> EvalSet:
    return copied(kept, settings)


@pytest.mark.parametrize(
    ("format", "ending"),
    [("", "-train.jsonl"), ("nemo-gym", ".nemo-gym.jsonl"), ("verifiers", ".zip")],
)
def test_a_split_is_a_file(held: EvalSet, format: str, ending: str) -> None:
    made = get(
        key_headers(held.project),
        "export",
        held.pk,
        split="train",
        **({"as": format} if format else {}),
    )
    body = text_of(made)
    assert made.status_code == 200 and ending in made["Content-Disposition"] and body
    if format != "verifiers":
        assert len([json.loads(line) for line in body.splitlines()]) == 2
    assert not HoldoutView.objects.exists()


def test_the_hold_outs_file_needs_the_right_and_is_a_look(held: EvalSet) -> None:
    assert get(key_headers(held.project), "export", held.pk, split="holdout").status_code == 403
    assert not HoldoutView.objects.exists()
    made = get(key_headers(held.project, may_see_holdout=True), "export", held.pk, split="holdout")
    assert held.tasks.holdout().first().messages[0]["content"] in text_of(made).decode()
    assert HoldoutView.objects.get().api_key.name == "test"


def test_a_file_that_there_is_not(held: EvalSet) -> None:
    key = key_headers(held.project)
    for query in ({}, {"split": "x"}, {"split": "train", "as": "x"}):
        assert get(key, "export", held.pk, **query).status_code == 400
    assert get(key, "export", held.pk, split="validation").status_code == 409
    assert get(key_headers(make_project()), "export", held.pk, split="train").status_code == 404


@pytest.fixture
def newer(held: EvalSet) -> EvalSet:
    """The next version: a task more in train, one less in train and in the hold-out."""
    by = admin_of(held.project)
    draft = drafts.new_version(eval_set=held, by=by)
    for task in (draft.tasks.trainable().first(), draft.tasks.holdout().first()):
        actions.remove_task(task=task, by=by)
    actions.add_task(
        eval_set=draft,
        key="new",
        request="Water hall 9.",
        expected={"tool": "w", "args": {}},
        split=Split.TRAIN,
        by=by,
    )
    return draft


def test_what_differs_is_told_without_the_hold_out(held: EvalSet, newer: EvalSet) -> None:
    found = get(key_headers(held.project), "changes", newer.pk).json()
    assert (found["older"], found["newer"], found["held_out"]) == (str(held), str(newer), 1)
    assert found["counts"] == {"added": 1, "removed": 2} and found["next"] is None
    assert sorted(one["kind"] for one in found["results"]) == ["added", "removed"]
    added = next(one for one in found["results"] if one["kind"] == "added")
    assert added["before"] is None and added["after"]["messages"][0]["content"] == "Water hall 9."
    assert not HoldoutView.objects.exists()


def test_the_hold_outs_differences_need_the_right_and_are_counted(
    held: EvalSet, newer: EvalSet
) -> None:
    assert get(key_headers(held.project), "changes", newer.pk, holdout="1").status_code == 403
    key = key_headers(held.project, may_see_holdout=True)
    found = get(key, "changes", held.pk, against=newer.version, holdout="1").json()
    assert len(found["results"]) == 3 and HoldoutView.objects.get().api_key.name == "test"
    first = get(key, "changes", newer.pk, holdout="1", limit=2).json()
    assert (len(first["results"]), first["next"]) == (2, 2)
    last = get(key, "changes", newer.pk, holdout="1", limit=2, offset=2).json()
    assert (len(last["results"]), last["next"]) == (1, None)


def test_differences_of_versions_that_there_are_not(held: EvalSet, newer: EvalSet) -> None:
    key = key_headers(held.project)
    assert get(key, "changes", held.pk).status_code == 404  # the first version
    assert get(key, "changes", newer.pk, against=9).status_code == 404
    assert get(key, "changes", newer.pk, against="x").status_code == 400
    assert get(key_headers(make_project()), "changes", newer.pk).status_code == 404


@pytest.fixture
def run(data_dir: Path) -> EvalRun:
    return evaluated(frozen_set(), (2, 0, 4, 1, 4), data_dir)


@pytest.mark.proof
def test_it_says_which_tasks_teach_in_pages(run: EvalRun) -> None:
    key = key_headers(run.project)
    first = get(key, "learnability", run.pk, limit=3).json()
    assert (first["tasks"], first["learns_from"], first["picked"], first["why_not"]) == (
        5,
        2,
        2,
        "",
    )
    assert "learn from 2 of 5 tasks" in first["sentence"] and first["counts"]["mixed"] == 2
    last = get(key, "learnability", run.pk, limit=3, cursor=first["next"]).json()
    keys = [row["key"] for row in first["results"] + last["results"]]
    assert (
        keys == sorted(run.eval_set.tasks.filter(split="train").values_list("key", flat=True))
        and last["next"] is None
    )
    mixed = get(key, "learnability", run.pk, kind="mixed", per_group=1).json()["results"]
    assert [(row["passed"], row["n"]) for row in mixed if row["picked"]] and {
        row["kind"] for row in mixed
    } == {"mixed"}
    assert get(key, "learnability", run.pk, kind="x").status_code == 400
    assert get(key, "learnability", run.pk, group_size="x").status_code == 400


def test_learnability_of_a_hold_out_needs_the_right_and_is_counted(data_dir: Path) -> None:
    run = evaluated(frozen_set(), (2, 0), data_dir, split=Split.HOLDOUT)
    assert get(key_headers(run.project), "learnability", run.pk).status_code == 403
    assert not HoldoutView.objects.exists()
    found = get(key_headers(run.project, may_see_holdout=True), "learnability", run.pk)
    assert (
        found.status_code == 200
        and "held out" in found.json()["why_not"]
        and found.json()["picked"] == 0
    )
    assert HoldoutView.objects.get().api_key.name == "test"


def test_learnability_of_an_evaluation_without_samples(data_dir: Path) -> None:
    run = evaluated(frozen_set(), (), data_dir)
    found = get(key_headers(run.project), "learnability", run.pk)
    assert found.status_code == 200 and found.json()["results"] == []


@pytest.mark.parametrize("name", ["export", "changes", "learnability"])
def test_who_may_read_it(name: str, run: EvalRun, held: EvalSet, newer: EvalSet) -> None:
    pk = run.pk if name == "learnability" else newer.pk
    project = run.project if name == "learnability" else held.project
    query = {"split": "train"} if name == "export" else {}
    assert get({}, name, pk, **query).status_code == 401
    assert get(key_headers(make_project()), name, pk, **query).status_code == 404
    sends = create_api_key(project=project, name="s", by=admin_of(project), scopes=[Scope.INGEST])[
        1
    ]
    assert get({"HTTP_AUTHORIZATION": f"Bearer {sends}"}, name, pk, **query).status_code == 403
