from __future__ import annotations

import pytest
from django.test import Client

from apps.core.models import AuditEvent, Role
from apps.failures.actions.decisions import decide, undo
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import ensure_modes
from apps.failures.models import Failure, FailureState
from tests.factories import make_failed, make_member, make_project, make_trajectory

pytestmark = pytest.mark.django_db


def test_classifying_twice_changes_nothing() -> None:
    project = make_project()
    make_failed(project)
    make_trajectory(project, outcome={"status": "success"})
    assert classify_project(project=project) == {"looked": 2, "found": 1}
    before = Failure.objects.get()
    classify_project(project=project)
    after = Failure.objects.get()
    assert (before.pk, before.mode) == (after.pk, after.mode)


def test_a_persons_word_stands() -> None:
    project = make_project()
    make_failed(project)
    classify_project(project=project)
    person, mode = make_member(project), ensure_modes(project)["bad_planning"]
    decide(failure=Failure.objects.get(), by=person, mode=mode)
    classify_project(project=project)
    failure = Failure.objects.get()
    assert (
        failure.mode == mode
        and failure.state == FailureState.CONFIRMED
        and failure.decided_by == person
    )
    assert AuditEvent.objects.filter(action="failure.decided", actor=person).exists()


def test_a_dismissed_failure_stays_dismissed_and_does_not_count() -> None:
    project = make_project()
    make_failed(project)
    classify_project(project=project)
    decide(failure=Failure.objects.get(), by=make_member(project), state=FailureState.DISMISSED)
    classify_project(project=project)
    assert not Failure.objects.standing().exists()


def test_undo_takes_back_ones_own_last_decision() -> None:
    project = make_project()
    make_failed(project)
    classify_project(project=project)
    failure, person = Failure.objects.get(), make_member(project)
    decide(failure=failure, by=person, mode=ensure_modes(project)["unsafe_action"])
    assert undo(project=project, by=make_member(project)) is None
    undo(project=project, by=person)
    failure.refresh_from_db()
    assert (
        failure.mode.slug == "incomplete_execution"
        and failure.state == FailureState.OPEN
        and failure.source == "rule"
    )


def test_triage_by_hand() -> None:
    project = make_project()
    for _ in range(2):
        make_failed(project)
    classify_project(project=project)
    client = Client()
    client.force_login(make_member(project, Role.ENGINEER))
    page = client.get(f"/p/{project.slug}/failures/triage/", follow=True)
    first = page.context["failure"]
    assert b"blamed step" in page.content
    page = client.post(
        f"/p/{project.slug}/failures/{first.pk}/decide/", {"confirm": ""}, follow=True
    )
    assert page.context["failure"] != first
    page = client.post(
        f"/p/{project.slug}/failures/{page.context['failure'].pk}/decide/",
        {"dismiss": ""},
        follow=True,
    )
    assert b"Nothing left to triage" in page.content and b"View clusters</a>" in page.content
    empty = make_project()
    client.force_login(make_member(empty))
    page = client.get(f"/p/{empty.slug}/failures/triage/", follow=True)
    assert b"Nothing left to triage" in page.content and b"View clusters</a>" not in page.content


def test_hostile_text_is_escaped() -> None:
    project = make_project()
    trajectory = make_failed(project, request="<script>alert(1)</script>")
    classify_project(project=project)
    client = Client()
    client.force_login(make_member(project))
    for url in (
        f"/p/{project.slug}/trajectories/",
        f"/p/{project.slug}/trajectories/{trajectory.pk}/",
        f"/p/{project.slug}/failures/",
        f"/p/{project.slug}/failures/{trajectory.failure.pk}/",
    ):
        page = client.get(url)
        assert b"<script>alert(1)" not in page.content and b"alert(1)" in page.content
        assert (
            "script" not in page["Content-Security-Policy"]
            or "unsafe" not in page["Content-Security-Policy"].split("script")[1]
        )
