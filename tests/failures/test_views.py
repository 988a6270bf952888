"""The list with its rates and bulk changes, the modes, marking by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.models import Project
from apps.failures import rates
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import ensure_modes
from apps.failures.models import Failure, FailureMode, FailureState
from apps.trajectories import digest
from tests.factories import make_failed, make_member, make_project, make_trajectory

pytestmark = pytest.mark.django_db


def seeded(failures: int = 3, good: int = 2) -> tuple[Project, Client, Any]:
    project = make_project()
    for _ in range(failures):
        make_failed(project)
    for _ in range(good):
        make_trajectory(
            project, outcome={"status": "success"}, agent={"name": "assistant", "version": "2"}
        )
    classify_project(project=project)
    digest.run()
    user, client = make_member(project), Client()
    client.force_login(user)
    return project, client, user


def url(project: Project, name: str, *args: object) -> str:
    return reverse(f"failures:{name}", args=[project.slug, *args])


def test_buckets_have_counts_rates_and_intervals() -> None:
    project, client, _ = seeded(3, 2)
    Failure.objects.filter(pk=Failure.objects.first().pk).update(state=FailureState.DISMISSED)
    bucket = client.get(url(project, "list")).context["buckets"][0]
    assert (bucket.rate.failed, bucket.rate.n, bucket.open, bucket.dismissed) == (2, 5, 2, 1)
    low, high = bucket.rate.interval
    assert 0 < low < bucket.rate.rate < high < 1


def test_rates_by_version_and_time_are_of_the_roll_ups() -> None:
    project, _, _ = seeded(3, 2)
    assert [
        (rate.name, rate.failed, rate.n) for rate in rates.by_version(rates.kinds(project, None))
    ] == [
        ("assistant 2", 0, 2),
        ("assistant 1", 3, 3),
    ]
    _, over_time = rates.by_time(project, None)
    assert (
        sum(rate.failed for _, rate in over_time) == 3 and sum(rate.n for _, rate in over_time) == 5
    )
    assert [id for id, _ in rates.figures(project, None)] == ["rate-by-mode", "rate-by-version"]
    earlier = (timezone.now() - timedelta(hours=3)).isoformat()
    make_trajectory(project, outcome={"status": "success"}, started_at=earlier)
    digest.run()
    assert next(rates.figures(project, None))[0] == "rate-by-time"


def test_roll_ups_that_are_behind_give_no_rate_above_one() -> None:
    project = make_project()
    make_failed(project)
    classify_project(project=project)
    assert rates.total(project) == 0 and rates.buckets(project)[0].rate.rate == 1.0


@pytest.mark.proof
def test_the_charts_come_by_themselves() -> None:
    project, client, _ = seeded()
    assert b'hx-get="' + url(project, "charts").encode() in client.get(url(project, "list")).content
    assert client.get(url(project, "charts"), {"since": "nonsense"}).status_code == 400
    for since in rates.SINCE:
        answer = client.get(url(project, "charts"), {"since": since})
        assert answer.status_code == 200 and b"rate-by-version" in answer.content


@pytest.mark.proof
def test_the_list_narrows_by_the_url() -> None:
    project, client, user = seeded(3)
    chosen = Failure.objects.first()
    Failure.objects.filter(pk=chosen.pk).update(assigned_to=user, state=FailureState.CONFIRMED)
    for query in ({"mine": "1"}, {"state": "confirmed"}):
        page = client.get(url(project, "list"), query)
        assert list(page.context["page"]) == [chosen]
    assert b"No matches" in client.get(url(project, "list"), {"mode": "unsafe_action"}).content


def test_bulk_changes_the_chosen_rows_and_undo_takes_it_back() -> None:
    project, client, _ = seeded(3)
    ids = list(Failure.objects.values_list("pk", flat=True))[:2]
    chosen = {"ids": f"{ids[0]},{ids[1]}", "do": "dismiss"}
    page = client.post(url(project, "bulk"), chosen, follow=True)
    assert (
        b"2 failures dismissed." in page.content
        and b"Your last change: decided on 2 failures" in page.content
    )
    assert Failure.objects.filter(state=FailureState.DISMISSED).count() == 2
    page = client.post(url(project, "undo"), {"back": "list", "query": "state=open"}, follow=True)
    assert b"Your last change to 2 failures was undone." in page.content and page.redirect_chain[
        -1
    ][0].endswith("?state=open")
    assert Failure.objects.filter(state=FailureState.OPEN).count() == 3


def test_bulk_on_all_that_match_is_counted_by_the_server() -> None:
    project, client, user = seeded(4)
    Failure.objects.filter(pk=Failure.objects.first().pk).update(
        mode=ensure_modes(project)["unsafe_action"]
    )
    body = {
        "ids": "1",
        "all": "1",
        "query": "mode=incomplete_execution",
        "do": "mode",
        "mode": "bad_planning",
    }
    page = client.post(url(project, "bulk"), body, follow=True)
    assert "3 failures changed to “Bad planning”." in page.content.decode()
    body = {"all": "1", "query": "", "do": "assign", "to": user.username}
    client.post(url(project, "bulk"), body)
    assert Failure.objects.filter(assigned_to=user).count() == 4


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("body", [{}, {"ids": "1", "do": "explode"}, {"do": "confirm"}])
def test_a_bulk_change_that_makes_no_sense_says_so(body: dict[str, str]) -> None:
    project, client, _ = seeded(1, 0)
    page = client.post(url(project, "bulk"), body, follow=True)
    assert b"note error" in page.content and Failure.objects.get().state == FailureState.OPEN


def test_a_project_adds_and_changes_its_own_mode() -> None:
    project, client, _ = seeded(1, 0)
    new = {
        "name": "Rude tone",
        "slug": "",
        "severity": "low",
        "position": "9",
        "definition": "d",
        "examples": "",
    }
    assert (
        "“Rude tone” saved."
        in client.post(url(project, "mode_add"), new, follow=True).content.decode()
    )
    mode = project.failure_modes.get(slug="rude_tone")
    again = client.post(url(project, "mode_add"), new)
    assert "A mode with the slug “rude_tone” already exists" in again.content.decode()
    changed = {f"m{mode.pk}-{name}": value for name, value in new.items()}
    client.post(
        url(project, "mode_save", mode.pk),
        changed | {f"m{mode.pk}-name": "Rude", f"m{mode.pk}-slug": "other"},
    )
    mode.refresh_from_db()
    assert (mode.name, mode.slug) == ("Rude", "rude_tone")
    assert b"This field is required" in client.post(url(project, "mode_save", mode.pk), {}).content
    client.post(url(project, "mode_delete", mode.pk))
    assert not project.failure_modes.filter(slug="rude_tone").exists()


@pytest.mark.proof
def test_own_modes_take_their_positions_and_keys_follow_the_order_shown() -> None:
    project, client, _ = seeded(1, 0)
    for position, name in enumerate(("First", "Second", "Third"), 1):
        body = {
            "name": name,
            "slug": "",
            "severity": "low",
            "position": str(position),
            "definition": "",
            "examples": "",
        }
        client.post(url(project, "mode_add"), body)
    page = client.get(url(project, "case", Failure.objects.get().pk))
    shown = [(str(key), mode.name) for key, mode in page.context["modes"]]
    assert shown[:4] == [
        ("1", "First"),
        ("2", "Second"),
        ("3", "Third"),
        ("4", "Format error"),
    ]
    assert [key for key, _ in shown] == [*"1234567890", "", "", "", "", ""]
    assert [mode.position for mode in project.failure_modes.all()] == list(range(1, 16))
    assert 'data-key="0"' in page.content.decode() and "policy_violation" in {
        row.slug for row in list(project.failure_modes.all())[:12]
    }
    last = {
        "name": "End",
        "slug": "",
        "severity": "low",
        "position": "32767",
        "definition": "",
        "examples": "",
    }
    for name in ("End", "Very end"):
        assert client.post(url(project, "mode_add"), last | {"name": name}).status_code == 302


@pytest.mark.proof
def test_a_mode_in_use_stays_and_the_page_says_why() -> None:
    project, client, _ = seeded(1, 0)
    own = FailureMode.objects.create(project=project, slug="own", name="Own")
    Failure.objects.update(mode=own)
    assert (
        b"is in use: 1 failure has it"
        in client.post(url(project, "mode_delete", own.pk), follow=True).content
    )
    other = FailureMode.objects.create(project=make_project(), slug="own", name="Own")
    assert client.post(url(project, "mode_delete", other.pk)).status_code == 404


@pytest.mark.proof
def test_the_page_to_mark_a_run_shows_its_numbered_steps() -> None:
    project, client, _ = seeded(1, 1)
    run = project.trajectories.filter(failure=None).get()
    page = client.get(url(project, "mark", run.pk)).content.decode()
    for index, message in enumerate(run.messages):
        assert (
            f'id="m{index}"' in page
            and f"#{index}" in page
            and (message["content"] or "")[:20] in page
        )


def test_a_run_is_marked_by_hand() -> None:
    project, client, user = seeded(0, 1)
    row = project.trajectories.get()
    assert b"No rule found a failure" in client.get(url(project, "mark", row.pk)).content
    wrong = client.post(
        url(project, "mark", row.pk), {"mode": "bad_planning", "blamed_message": "99"}
    )
    assert b"There is no message 99" in wrong.content and not Failure.objects.exists()
    page = client.post(
        url(project, "mark", row.pk), {"mode": "bad_planning", "blamed_message": "1"}, follow=True
    )
    assert (
        "Marked as “Bad planning”" in page.content.decode()
        and Failure.objects.get().decided_by == user
    )
    client.post(url(project, "undo"))
    assert not Failure.objects.exists()
