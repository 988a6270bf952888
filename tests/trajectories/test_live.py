"""The live tail shows what arrived since the last look, once, within the filters, and never more
than a screen can take.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project, Role
from apps.evals import actions, drafts
from apps.evals.models import HoldoutView, Split
from apps.trajectories.models import Trajectory
from apps.trajectories.pages import live
from tests.factories import (
    admin_of,
    make_member,
    make_project,
    make_trajectory,
    task_from_trajectory,
)

pytestmark = pytest.mark.django_db(transaction=True)


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
    Trajectory.objects.filter(pk=first.pk).update(
        received_at=timezone.now(), outcome_status="failure"
    )
    again = look(viewer, project, after=seen["tail"].after)
    assert [row.pk for row in again["tail"].rows] == [second.pk], (
        "a run that is changed does not arrive again"
    )
    assert not look(viewer, project, after=again["tail"].after)["tail"].rows


@pytest.mark.proof
def test_a_batch_that_commits_late_is_shown(project: Project, viewer: Client) -> None:
    """It was received before another one that was shown already, and committed when two tabs had
    looked several times.
    """
    begun, may_commit = threading.Event(), threading.Event()

    def slowly() -> None:
        try:
            with transaction.atomic():
                arrived(project, 600, name="late", started_at="2026-11-01T00:00:00Z")
                begun.set()
                may_commit.wait(300)
        finally:
            connection.close()

    storing = threading.Thread(target=slowly)
    storing.start()
    assert begun.wait(300)
    arrived(project, 0, name="early")
    tabs = [look(viewer, project)["tail"] for _ in range(2)]
    assert [[row.external_id for row in tab.rows] for tab in tabs] == [["early"]] * 2
    tabs = [look(viewer, project, after=tab.after)["tail"] for tab in tabs]
    may_commit.set()
    storing.join()
    for tab in tabs:
        arrived(project, 0)
        seen = look(viewer, project, after=tab.after)["tail"]
        assert "late" in [row.external_id for row in seen.rows] and "early" not in [
            row.external_id for row in seen.rows
        ]
        assert not look(viewer, project, after=seen.after)["tail"].rows


def test_of_many_it_shows_the_newest_and_says_how_many_are_left_out(
    project: Project, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SHOWN", 2)
    made = [arrived(project, 5, started_at=f"2026-11-01T00:00:0{n}Z") for n in range(5)]
    tail = look(viewer, project)["tail"]
    assert [row.pk for row in tail.rows] == [made[4].pk, made[3].pk] and (
        tail.left_out,
        tail.more,
    ) == (3, False)
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
    before = live.Cursor.now()
    arrived(project, 5)
    paused = viewer.get(
        reverse("trajectories:live_rows", args=[project.slug]),
        {"after": str(before), "paused": "1"},
    )
    assert not paused.context["tail"].rows and paused.context["tail"].after == before
    said = paused.content.decode()
    assert "Resume" in said and "hx-trigger" not in said
    assert len(look(viewer, project, after=before)["tail"].rows) == 1


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    "after",
    [
        "",
        "-1",
        "x",
        "9" * 30,
        "9" * 16,
        "1.1",
        "9999999999999999.999999999999999999.7.7",
        "1.",
        ".1",
        "1.1." + "1." * 600,
        "１.１",
    ],
)
def test_any_cursor_is_taken(project: Project, viewer: Client, after: str) -> None:
    arrived(project, 5)
    look(viewer, project, after=after)


def test_a_held_out_run_is_a_look(project: Project, viewer: Client) -> None:
    run = arrived(
        project,
        5,
        request="Water the ferns in hall nine.",
        outcome={"status": "success"},
        call={"tool": "plants.water", "args": {"hall": 9}},
    )
    looks = HoldoutView.objects.filter(project=project)
    look(viewer, project)
    assert not looks.exists()
    held = actions.create_eval_set(project=project, slug="secret", by=admin_of(project))
    task_from_trajectory(eval_set=held, trajectory=run, split=Split.HOLDOUT, by=admin_of(project))
    drafts.freeze(eval_set=held, by=admin_of(project))
    look(viewer, project)
    assert looks.exists()


def test_hostile_text_is_text(project: Project, viewer: Client) -> None:
    arrived(
        project, 5, messages=[{"role": "user", "content": "</template><script>alert(1)</script>"}]
    )
    said = viewer.get(reverse("trajectories:live_rows", args=[project.slug])).content.decode()
    assert "<script>" not in said and "&lt;script&gt;" in said
