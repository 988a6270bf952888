"""Reviews and locks by API: what there is, why it is locked, and who may ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.reviews.models import RewardReview
from tests.factories import make_key, make_member, make_project
from tests.reviews.made import Made, judge_all, pass_probes
from tests.shared import once

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    def build(folder: Path) -> Made:
        made = Made(folder)
        made.review(reviewers_per_sample=2, four_eyes=True)
        return made

    yield from once(request, build)


def ask(key: str, name: str, *args: Any, **query: Any) -> Any:
    return Client().get(
        reverse(f"reviews_api:{name}", args=args), query, HTTP_AUTHORIZATION=f"Bearer {key}"
    )


def test_the_lock_says_why_and_what_to_do_until_it_opens(made: Made) -> None:
    key, review = make_key(made.project), RewardReview.objects.get()
    found = ask(key, "locks").json()["results"]
    assert [(row["environment"], row["state"], row["review"]) for row in found] == [
        ("workplace@1", "locked", review.pk)
    ]
    assert "0 of at least 50 samples are judged by 2 people." in [
        reason["what"] for reason in found[0]["reasons"]
    ]
    assert all(reason["todo"].endswith(".") for reason in found[0]["reasons"])
    for _ in range(2):
        judge_all(review, make_member(made.project))
    pass_probes(made.environment, eval_set=made.eval_set)
    asked = ask(key, "lock", "workplace", 1, eval_set=made.eval_set.pk).json()
    assert (
        asked["state"] == "unlocked"
        and asked["reasons"] == []
        and asked["eval_set"] == str(made.eval_set)
    )


def test_the_results_have_intervals_and_no_single_score(made: Made) -> None:
    key, review = make_key(made.project), RewardReview.objects.get()
    first, second = make_member(made.project), make_member(made.project)
    judge_all(review, first)
    (row,) = ask(key, "reviews").json()["results"]
    assert (row["judged"], row["begun"], row["samples"]) == (0, 60, 60)
    client = Client()
    client.force_login(first)
    text = client.get(reverse("reviews:list", args=[made.project.slug])).content.decode()
    assert "0 of 60 judged by 2 people, 60 begun" in " ".join(text.split())
    judge_all(review, second, wrong=3)
    (row,) = ask(key, "reviews").json()["results"]
    assert (row["id"], row["judged"], row["begun"], row["samples"]) == (review.pk, 60, 0, 60)
    answer = ask(key, "review", review.pk)
    found = answer.json()
    assert (
        found["waiting"] == 3
        and not found["passed"]
        and "3 samples wait for a ruling" in found["reasons"][0]
    )
    assert found["kappa"]["n"] == 60 and found["kappa"]["low"] < found["kappa"]["value"] < 1
    assert (
        found["accuracy"]["count"] == 57 and found["alpha"]["n"] == 60 and found["reviewers"] == 2
    )
    assert found["scope"]["strata"]["tool"] == {"tickets.close": 16}
    assert (
        "secretpart" not in answer.content.decode() and "output 1 of" not in answer.content.decode()
    )


@pytest.mark.parametrize("name", ["reviews", "review", "locks", "lock"])
def test_only_a_key_of_the_project_opens_it(made: Made, name: str) -> None:
    """Neither anonymous people, nor members and viewers by their browser; a stranger's key sees
    nothing.
    """
    args = {"review": [RewardReview.objects.get().pk], "lock": ["workplace", 1]}.get(name, [])
    url = reverse(f"reviews_api:{name}", args=args)
    assert Client().get(url).status_code == 401
    for role in (Role.VIEWER, Role.ENGINEER):
        client = Client()
        client.force_login(make_member(made.project, role))
        assert client.get(url).status_code == 401
    theirs = ask(make_key(make_project()), name, *args)
    assert theirs.status_code == 404 if args else theirs.json()["results"] == []
    mine = make_key(made.project)
    assert ask(mine, name, *args).status_code == 200
    assert Client().post(url, HTTP_AUTHORIZATION=f"Bearer {mine}").status_code == 405


@pytest.mark.parametrize(
    ("eval_set", "status"), [("x", 400), ("0190a5c4-0000-7000-8000-000000000000", 404)]
)
def test_a_set_that_is_none_is_refused(made: Made, eval_set: str, status: int) -> None:
    assert (
        ask(make_key(made.project), "lock", "workplace", 1, eval_set=eval_set).status_code == status
    )
    assert ask(make_key(made.project), "lock", "workplace", 9).status_code == 404
