from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.evals import actions, drafts
from apps.evals.diffing import ADDED, CHANGED, REMOVED, diff
from apps.evals.models import Split
from tests.factories import admin_of, make_eval_set, make_project


def task(key: str, **changes: Any) -> SimpleNamespace:
    usual = {
        "messages": [key],
        "tools": [],
        "expected": {},
        "demonstration": "",
        "split": "train",
        "group": "g",
        "metadata": {},
    }
    return SimpleNamespace(key=key, **{"canonical_hash": f"hash of {key}"} | usual | changes)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([], [], []),
        ([task("a")], [task("a")], []),
        ([], [task("a")], [(ADDED, "a", ())]),
        ([task("a")], [], [(REMOVED, "a", ())]),
        (
            [task("a")],
            [task("a", expected={"x": 1}, split="holdout")],
            [(CHANGED, "a", ("expected", "split"))],
        ),
        (
            [task("a")],
            [task("b", canonical_hash="hash of a", messages=["a"])],
            [(CHANGED, "b", ("key",))],
        ),
        ([task("a"), task("b")], [task("b"), task("c")], [(REMOVED, "a", ()), (ADDED, "c", ())]),
    ],
)
def test_what_has_changed(before: list, after: list, found: list) -> None:
    assert [
        (change.kind, change.task.key, change.fields) for change in diff(before, after)
    ] == found


def test_a_change_is_held_out_where_one_side_is() -> None:
    assert diff([task("a")], [task("a", split="holdout")])[0].is_held_out
    assert not diff([task("a")], [task("a", split="validation")])[0].is_held_out


@pytest.mark.django_db
def test_the_page_masks_the_holdout_until_somebody_looks(client: Client) -> None:
    project = make_project()
    client.force_login(admin_of(project))
    first = make_eval_set(project)
    second = drafts.new_version(eval_set=first, by=None)
    gone = second.tasks.trainable().first()
    actions.remove_task(task=gone, by=None)
    for split, request in ((Split.HOLDOUT, "A secret request."), (Split.TRAIN, "An open one.")):
        actions.add_task(
            eval_set=second,
            key=f"new-{split}",
            request=request,
            split=split,
            by=None,
            expected={"tool": "a", "args": {}},
        )
    url = reverse("evals:versions", args=[project.slug, second.pk])
    page = client.get(url).content.decode()
    assert (
        f"{first} → {second}" in page
        and gone.messages[0]["content"] in page
        and "An open one." in page
    )
    assert "A secret request." not in page and second.holdout_views.count() == 0
    page = client.post(
        reverse("evals:versions_with_holdout", args=[project.slug, second.pk])
    ).content.decode()
    assert "A secret request." in page and second.holdout_views.count() == 1
    assert (
        "one version"
        in client.get(
            reverse("evals:versions", args=[project.slug, make_eval_set(project).pk])
        ).content.decode()
    )
