"""The list sorted: by time through an index, by other columns the newest that match; and totals of
what matches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.trajectories import digest, ordering
from apps.trajectories.pages import listing
from tests.factories import key_headers, make_member, make_project, make_trajectory
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


def made_runs(_: Path) -> Project:
    project = make_project()
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
            outcome={
                "status": "failure" if name == "a" else "success" if name == "b" else "unknown"
            },
        )
    make_trajectory(make_project(), name="stranger")
    digest.run()
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_runs)


@pytest.fixture
def runs(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


@pytest.fixture
def viewer(runs: Project) -> Client:
    client = Client()
    client.force_login(make_member(runs, Role.VIEWER))
    return client


def names(client: Client, project: Project, **given: Any) -> str:
    page = client.get(reverse("trajectories:list", args=[project.slug]), given).context["page"]
    return "".join(row.external_id for row in page["rows"])


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "dcba"),
        ("started", "abcd"),
        ("-started", "dcba"),
        ("latency", "cdab"),
        ("-latency", "adcb"),
        ("-cost", "adbc"),
        ("tokens", "acdb"),
        ("-tokens", "dcab"),
    ],
)
def test_every_order(runs: Project, viewer: Client, sort: str, order: str) -> None:
    assert names(viewer, runs, sort=sort) == order


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("sort", "size"), [("", 1), ("started", 3), ("-latency", 1), ("latency", 3), ("-tokens", 1)]
)
def test_pages_go_on_in_the_order_and_back(
    runs: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch, sort: str, size: int
) -> None:
    whole = names(viewer, runs, sort=sort)
    monkeypatch.setattr(listing, "PAGE", size)

    def walk(cursor: str, onward: str) -> str:
        found = ""
        while cursor:
            page = viewer.get(
                reverse("trajectories:list", args=[runs.slug]), {"sort": sort, "cursor": cursor}
            )
            here = "".join(row.external_id for row in page.context["page"]["rows"])
            found = found + here if onward == "next" else here + found
            cursor = page.context["page"][onward] or ""
        return found

    first = viewer.get(reverse("trajectories:list", args=[runs.slug]), {"sort": sort}).context[
        "page"
    ]
    assert whole == whole[:size] + walk(first["next"], "next")
    last = viewer.get(
        reverse("trajectories:list", args=[runs.slug]), {"sort": sort, "cursor": first["next"]}
    )
    assert whole[:size] == walk(last.context["page"]["previous"], "previous")


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("sort", ["-latency", "latency"])
def test_what_arrives_between_two_pages_shows_no_row_twice(
    runs: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    whole = names(viewer, runs, sort=sort)
    monkeypatch.setattr(listing, "PAGE", 2)
    page = viewer.get(reverse("trajectories:list", args=[runs.slug]), {"sort": sort}).context[
        "page"
    ]
    for name, latency in (("x", 1), ("y", 10**6), ("z", 300)):
        make_trajectory(
            runs,
            name=name,
            started_at="2026-11-01T00:09:00Z",
            latency_ms=latency,
            usage={"cost_usd": latency / 1e3},
        )
    monkeypatch.setattr(listing, "PAGE", 50)
    rest = names(viewer, runs, sort=sort, cursor=page["next"])
    assert [name for name in rest if name in "abcd"] == list(whole[2:])


@pytest.mark.proof
def test_no_cursor_breaks_the_list(runs: Project, viewer: Client) -> None:
    some = f"after-{UUID(int=1)}"
    for nonsense in (
        "0",
        "-1",
        "9" * 40,
        "after-",
        "before-x",
        f"{some}-nan",
        f"{some}-inf",
        f"{some}-x",
        some,
    ):
        for sort in ("", "started", "-latency"):
            address = reverse("trajectories:list", args=[runs.slug])
            answer = viewer.get(address, {"sort": sort, "cursor": nonsense})
            assert answer.status_code in ((200, 400) if nonsense == some else (400,)), nonsense


def test_the_api_sorts_as_the_page_does(
    runs: Project, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = key_headers(runs)

    def ask(**given: Any) -> tuple[int, Any]:
        answer = client.get("/api/v1/trajectories/", given, **headers)
        return answer.status_code, answer.json()

    for sort, order in (
        ("-latency", "adcb"),
        ("latency", "cdab"),
        ("started", "abcd"),
        ("", "dcba"),
    ):
        found, cursor = "", ""
        while True:
            status, page = ask(sort=sort, limit=3, cursor=cursor)
            assert status == 200 and page["complete"]
            found += "".join(item["id"] for item in page["results"])
            if not (cursor := page["next"]):
                break
        assert found == order
    assert (
        ask(sort="preview")[0]
        == ask(sort="--latency")[0]
        == ask(sort="latency", cursor="x")[0]
        == 400
    )
    monkeypatch.setattr(ordering, "SORTED", 2)
    status, page = ask(sort="latency")
    assert [item["id"] for item in page["results"]] == ["c", "d"] and page["complete"] is False


def test_of_more_than_it_sorts_it_says_so(
    runs: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "SORTED", 2)
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
    assert everything["unknown outcomes"] == "50.0%" and everything["cost"] == "at least $0.9000"
    failed = sums(outcome="failure", latency_min="0.2")
    assert (failed["runs"], failed["failed outcomes"], failed["cost"]) == ("1", "100.0%", "$0.5000")
    nothing = sums(q="nothing has this word")
    assert (nothing["runs"], nothing["failed outcomes"], nothing["cost"]) == ("0", "–", "–")
