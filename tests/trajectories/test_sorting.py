"""The list sorted: by time through an index, by other columns the newest that match; and totals of what matches."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.trajectories import digest
from apps.trajectories.pages import listing
from tests.factories import make_member, make_project, make_trajectory

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    return client


@pytest.fixture
def runs(project: Project) -> Project:
    for name, minute, latency, cost in (
        ("a", 1, 300, 0.5),
        ("b", 2, None, 0.1),
        ("c", 3, 100, None),
        ("d", 4, 200, 0.3),
    ):
        make_trajectory(
            project,
            name=name,
            started_at=f"2026-11-01T00:0{minute}:00Z",
            latency_ms=latency,
            usage={"cost_usd": cost, "input_tokens": minute * 10 if minute != 2 else None},
            outcome={"status": "failure" if name == "a" else "success" if name == "b" else "unknown"},
        )
    make_trajectory(make_project(), name="stranger")
    digest.run()
    return project


def names(client: Client, project: Project, **given: Any) -> str:
    page = client.get(reverse("trajectories:list", args=[project.slug]), given).context["page"]
    return "".join(row.external_id for row in page["rows"])


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "dcba"), ("started", "abcd"), ("-started", "dcba"), ("latency", "cdab"), ("-latency", "adcb"), ("-cost", "adbc"),
        ("tokens", "bacd"), ("-tokens", "dcab"), ("preview", "dcba"), ("-x", "dcba"),
    ],
)  # fmt: skip
def test_every_order(runs: Project, viewer: Client, sort: str, order: str) -> None:
    assert names(viewer, runs, sort=sort) == order


@pytest.mark.parametrize("sort", ["started", "-latency"])
def test_pages_go_on_in_the_order(runs: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch, sort: str) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    whole = names(viewer, runs, sort=sort)
    page = viewer.get(reverse("trajectories:list", args=[runs.slug]), {"sort": sort}).context["page"]
    key = "cursor" if sort == "started" else "page"
    following = {"sort": sort, key: page["next"]}
    monkeypatch.setattr(listing, "PAGE", 3)
    rest = names(viewer, runs, **following)
    monkeypatch.setattr(listing, "PAGE", 50)
    assert whole + rest == names(viewer, runs, sort=sort)
    for nonsense in ("0", "-1", "x", "9" * 40, "after-", "before-x"):
        names(viewer, runs, sort=sort, page=nonsense, cursor=nonsense)


def test_of_more_than_it_sorts_it_says_so(runs: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SORTED", 2)
    answer = viewer.get(reverse("trajectories:list", args=[runs.slug]), {"sort": "latency"})
    assert [row.external_id for row in answer.context["page"]["rows"]] == ["c", "d"]
    assert "the newest 2 matching runs, sorted" in answer.content.decode()
    assert 'aria-sort="ascending"' in answer.content.decode()


def test_totals_follow_the_filters(runs: Project, viewer: Client) -> None:
    def sums(**given: str) -> dict[str, str]:
        answer = viewer.get(reverse("trajectories:sums", args=[runs.slug]), given)
        return {title: figure for title, figure, _ in answer.context["tiles"]}

    everything = sums()
    assert everything["runs"] == "4" and everything["failed outcomes"] == "50.0%"
    assert everything["unknown outcomes"] == "50.0%" and everything["cost"] == "$0.9000"
    failed = sums(outcome="failure", latency_min="0.2")
    assert (failed["runs"], failed["failed outcomes"], failed["cost"]) == ("1", "100.0%", "$0.5000")
    nothing = sums(q="nothing has this word")
    assert (nothing["runs"], nothing["failed outcomes"], nothing["cost"]) == ("0", "–", "–")
