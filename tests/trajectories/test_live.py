"""The live tail shows what arrived since the last look, once, within the filters, and never more than a screen can take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project, Role
from apps.trajectories.models import Trajectory
from apps.trajectories.pages import live
from tests.factories import make_member, make_project, make_trajectory

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(project: Project) -> Client:
    client = Client()
    client.force_login(make_member(project, Role.VIEWER))
    return client


def arrived(project: Project, ago: float, **given: Any) -> Trajectory:
    row = make_trajectory(project, **given)
    Trajectory.objects.filter(pk=row.pk).update(received_at=timezone.now() - timedelta(seconds=ago))
    return row


def look(client: Client, project: Project, **given: Any) -> Any:
    answer = client.get(reverse("trajectories:live_rows", args=[project.slug]), given)
    assert answer.status_code == 200
    return answer.context


def test_each_run_is_shown_once(project: Project, viewer: Client) -> None:
    first = arrived(project, 5)
    arrived(make_project(), 5)
    seen = look(viewer, project)
    assert [row.pk for row in seen["tail"].rows] == [first.pk] and seen["first"]
    second = arrived(project, 3)
    Trajectory.objects.filter(pk=first.pk).update(received_at=timezone.now() - timedelta(seconds=60))
    after = seen["tail"].after - 10_000_000
    again = look(viewer, project, after=after)
    assert [row.pk for row in again["tail"].rows] == [second.pk]
    assert not look(viewer, project, after=again["tail"].after)["tail"].rows


def test_what_may_still_be_stored_waits_for_the_next_look(project: Project, viewer: Client) -> None:
    row = arrived(project, 0)
    seen = look(viewer, project)["tail"]
    assert not seen.rows
    Trajectory.objects.filter(pk=row.pk).update(received_at=timezone.now() - live.SETTLED)
    # the cursor is behind what was not shown
    assert seen.after <= (timezone.now() - live.SETTLED - live.EPOCH) // timedelta(microseconds=1)


def test_of_many_it_shows_the_newest_and_says_how_many_are_left_out(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SHOWN", 2)
    made = [arrived(project, 5, started_at=f"2026-11-01T00:00:0{n}Z") for n in range(5)]
    tail = look(viewer, project)["tail"]
    assert [row.pk for row in tail.rows] == [made[4].pk, made[3].pk] and (tail.left_out, tail.more) == (3, False)
    monkeypatch.setattr(live, "SCANNED", 4)
    tail = look(viewer, project)["tail"]
    assert (len(tail.rows), tail.left_out, tail.more) == (2, 2, True)


def test_filters_apply_and_times_do_not(project: Project, viewer: Client) -> None:
    failed = arrived(project, 5, outcome={"status": "failure"})
    arrived(project, 5, outcome={"status": "success"})
    given = {"outcome": "failure", "since": "1h", "to": "2020-01-01", "cursor": "nonsense"}
    assert [row.pk for row in look(viewer, project, **given)["tail"].rows] == [failed.pk]
    page = viewer.get(reverse("trajectories:live", args=[project.slug]), given)
    assert [chip.name for chip, _ in page.context["chips"]] == ["outcome"]


def test_paused_it_reads_nothing_and_goes_on_where_it_was(project: Project, viewer: Client) -> None:
    arrived(project, 5)
    before = look(viewer, project)["tail"].after - 20_000_000
    paused = viewer.get(reverse("trajectories:live_rows", args=[project.slug]), {"after": before, "paused": "1"})
    assert not paused.context["tail"].rows and paused.context["tail"].after == before
    said = paused.content.decode()
    assert "Resume" in said and "hx-trigger" not in said
    assert len(look(viewer, project, after=before)["tail"].rows) == 1


@pytest.mark.parametrize("after", ["", "-1", "x", "9" * 30, "9" * 18])
def test_any_cursor_is_taken(project: Project, viewer: Client, after: str) -> None:
    arrived(project, 5)
    look(viewer, project, after=after)


def test_hostile_text_is_text(project: Project, viewer: Client) -> None:
    arrived(project, 5, messages=[{"role": "user", "content": "</template><script>alert(1)</script>"}])
    said = viewer.get(reverse("trajectories:live_rows", args=[project.slug])).content.decode()
    assert "<script>" not in said and "&lt;script&gt;" in said
