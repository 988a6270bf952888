"""Reclassification: the diff, killed and gone on with, applied or discarded; people's decisions
stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import jobs, outbox, runner
from apps.core.models import AuditEvent, Project, Role
from apps.failures import reclassify
from apps.failures.actions.decisions import decide, split
from apps.failures.actions.diagnose import classify_project
from apps.failures.actions.modes import ensure_modes
from apps.failures.models import (
    Failure,
    FailureState,
    Reclassification,
    ReclassificationChange,
    Source,
)
from apps.trajectories.models import Trajectory
from tests.factories import make_failed, make_member, make_project, make_trajectory
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list:
    found: list[Any] = []
    monkeypatch.setattr(
        outbox.current_app, "send_task", lambda name, args, **_: found.append((name, args))
    )
    return found


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclassify, "CHUNK", 2)


def made_project(_: Path) -> Project:
    """Five failed runs, diagnosed by rules of another day: two modes and a step are other, one is
    missing, one too many.
    """
    project = make_project()
    for _ in range(5):
        make_failed(project)
    make_trajectory(project, outcome={"status": "success"})
    classify_project(project=project)
    modes, rows = ensure_modes(project), list(Failure.objects.order_by("trajectory_id"))
    Failure.objects.filter(pk__in=[rows[0].pk, rows[1].pk]).update(
        mode=modes["bad_planning"], rule_mode="bad_planning"
    )
    Failure.objects.filter(pk=rows[2].pk).update(blamed_message=0)
    rows[3].delete()
    healthy = Trajectory.objects.get(project=project, failure=None, outcome_status="success")
    Failure.objects.create(
        project=project, trajectory=healthy, mode=modes["unsafe_action"], rule_mode="unsafe_action"
    )
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def started(project: Project) -> Reclassification:
    return reclassify.start(project=project, by=make_member(project))


def finished(project: Project) -> Reclassification:
    return done(started(project))


def done(job: Reclassification) -> Reclassification:
    """What a worker does with it."""
    job.refresh_from_db()
    runner.run(job)
    job.refresh_from_db()
    return job


def one_step(job: Reclassification) -> None:
    """A worker that is killed after one step; another will be sent the job."""
    real = runner.step

    def step(*args: Any) -> bool:
        real(*args)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "step", step)
        with pytest.raises(Killed):
            done(job)
    Reclassification.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert jobs.reap()["requeued"] == 1
    job.refresh_from_db()


class Killed(BaseException):
    pass


def diagnoses(project: Project) -> list[tuple]:
    rows = Failure.objects.filter(project=project).order_by("trajectory_id")
    return list(
        rows.values_list(
            "trajectory", "mode__slug", "rule_mode", "blamed_message", "state", "source"
        )
    )


def cells(job: Reclassification) -> dict[tuple[str, str], int]:
    return {(cell["before"], cell["after"]): cell["n"] for cell in reclassify.matrix(job)}


WOULD_CHANGE = {
    ("bad_planning", "incomplete_execution"): 2,
    ("incomplete_execution", "incomplete_execution"): 1,
    ("", "incomplete_execution"): 1,
    ("unsafe_action", ""): 1,
}


def test_the_diff_says_what_would_change_and_changes_nothing(project: Project) -> None:
    before = diagnoses(project)
    job = finished(project)
    assert (job.stage, job.total, job.done) == ("ready", 6, 6)
    assert cells(job) == WOULD_CHANGE and diagnoses(project) == before


def test_a_killed_comparison_goes_on_where_it_stopped(
    project: Project, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(project)
    one_step(job)
    assert (job.stage, job.done) == ("queued", 2) and job.cursor["after"]
    looked: list[Any] = []
    real = reclassify.classify
    monkeypatch.setattr(reclassify, "classify", lambda row: looked.append(row) or real(row))
    assert (
        done(job).stage == "ready"
        and job.done == 6
        and cells(job) == WOULD_CHANGE
        and len(looked) == 4
    )


def test_applying_makes_the_diff_true_and_leaves_nothing_to_change(
    project: Project, small_chunks: None, sent: list
) -> None:
    job, by = finished(project), make_member(project)
    assert reclassify.apply(job=job, by=by) and not reclassify.apply(job=job, by=by)
    job.refresh_from_db()
    assert job.stage == "being applied"
    one_step(job)
    assert done(job).stage == "applied" and job.finished_at and job.done == job.total == 5
    assert [row[1:3] for row in diagnoses(project)] == [
        ("incomplete_execution", "incomplete_execution")
    ] * 5
    event = AuditEvent.objects.get(action="reclassification.applied")
    assert event.actor == by and event.detail["changes"] == 5
    again = finished(project)
    assert cells(again) == {} and not reclassify.discard(job=job, by=by)


def test_what_people_decided_is_counted_and_never_changed(project: Project) -> None:
    rows, by = list(Failure.objects.order_by("trajectory_id")), make_member(project)
    decide(failure=rows[0], by=by)  # confirmed as bad planning; the rules say format error now
    decide(failure=rows[2], by=by)  # the rules agree
    decide(failure=rows[-1], by=by, state=FailureState.DISMISSED)  # and so they do here: it is none
    job = finished(project)
    assert reclassify.of_people(job) == {"decided": 3, "agree": 2, "disagree": 1}
    assert cells(job) == {
        ("bad_planning", "incomplete_execution"): 1,
        ("", "incomplete_execution"): 1,
    }
    decide(failure=rows[1], by=by)  # after the diff, before it is applied
    reclassify.apply(job=job, by=by)
    done(job)
    found = {row.pk: row for row in Failure.objects.select_related("mode")}
    for row in (rows[0], rows[1]):
        assert (found[row.pk].mode.slug, found[row.pk].source) == ("bad_planning", Source.PERSON)
        assert (
            found[row.pk].rule_mode == "incomplete_execution"
        )  # what the rules say, whoever decided
    assert found[rows[-1].pk].state == FailureState.DISMISSED and found[rows[-1].pk].rule_mode == ""


def test_a_second_mode_of_a_person_keeps_the_failure(project: Project) -> None:
    extra = Failure.objects.get(mode__slug="unsafe_action")
    split(failure=extra, by=make_member(project), mode=ensure_modes(project)["bad_planning"])
    job = finished(project)
    reclassify.apply(job=job, by=make_member(project))
    done(job)
    assert Failure.objects.filter(pk=extra.pk).exists()


def test_what_rules_are_sure_of_comes_before_what_the_judge_found(project: Project) -> None:
    """Also where the judge's word was stored first, and in the preview."""
    by_judge = Failure.objects.filter(mode__slug="bad_planning")
    pks = list(by_judge.values_list("pk", flat=True))
    by_judge.update(source=Source.JUDGE, judge_mode="bad_planning", rule_mode="", evidence=[SAID])
    job = finished(project)
    assert reclassify.changing(job).filter(before="bad_planning").count() == 2
    reclassify.apply(job=job, by=make_member(project))
    done(job)
    for failure in Failure.objects.filter(pk__in=pks):
        assert (failure.mode.slug, failure.source) == ("incomplete_execution", Source.RULE)
        assert failure.rule_mode == "incomplete_execution" and failure.evidence[-1] == SAID


def test_a_diagnosis_that_changed_since_the_diff_is_left(project: Project) -> None:
    job = finished(project)
    other = ensure_modes(project)["retrieval_failure"]
    Failure.objects.filter(mode__slug="bad_planning").update(mode=other)
    reclassify.apply(job=job, by=make_member(project))
    done(job)
    assert Failure.objects.filter(mode=other).count() == 2


def test_one_at_a_time(project: Project) -> None:
    job = started(project)
    with pytest.raises(reclassify.ReclassifyError, match="already running"):
        started(project)
    done(job)
    with pytest.raises(reclassify.ReclassifyError, match="Apply or discard the last preview"):
        started(project)
    job.refresh_from_db()
    assert reclassify.discard(job=job, by=make_member(project)) and not job.changes.exists()
    assert started(project)


def test_a_discarded_comparison_ends(
    project: Project, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, real = started(project), runner.step

    def step(*args: Any) -> bool:
        if job.changes.exists():
            reclassify.discard(job=job, by=make_member(project))
        return real(*args)

    monkeypatch.setattr(runner, "step", step)
    assert done(job).stage == "discarded" and job.state == "cancelled"
    assert job.done == 4 and not ReclassificationChange.objects.exists()
    assert started(project)


def test_one_that_waits_is_discarded_at_once(project: Project) -> None:
    job = started(project)
    assert reclassify.discard(job=job, by=make_member(project)) and not reclassify.discard(
        job=job, by=None
    )
    assert done(job).stage == "discarded" and not job.attempt


def test_an_error_is_shown_at_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(reclassify, "classify", broken)
    job = finished(project)
    assert (job.stage, job.error, job.attempt) == ("failed", "no such thing", 1)
    monkeypatch.undo()
    assert finished(project).stage == "ready"


# Pages


@pytest.fixture
def client(project: Project) -> Client:
    client = Client()
    client.force_login(make_member(project, Role.ENGINEER))
    return client


def test_from_the_button_to_the_applied_diff(
    project: Project, client: Client, sent: list, django_capture_on_commit_callbacks: Any
) -> None:
    url = reverse("failures:reclassify", args=[project.slug])
    assert b"No preview yet" in client.get(url).content
    with django_capture_on_commit_callbacks(execute=True):
        page = client.post(reverse("failures:reclassify_start", args=[project.slug]), follow=True)
    job = page.context["job"]
    assert (
        sent == [(jobs.TASK, ["failures.Reclassification", str(job.pk)])]
        and b"every 2s" in page.content
    )
    args = [project.slug, job.pk]
    fragment = reverse("failures:reclassification_status", args=args)
    assert "HX-Refresh" not in client.get(fragment, headers={"HX-Request": "true"}).headers
    done(job)
    assert client.get(fragment, headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"
    page = client.get(url)
    assert (
        page.context["changes"] == 5
        and b"Bad planning" in page.content
        and b"Apply" in page.content
    )
    cell = client.get(url, {"before": "unsafe_action", "after": "none"})
    assert [change.before for change in cell.context["page"]] == ["unsafe_action"]
    assert b"no rule matches" in cell.content
    again = client.post(reverse("failures:reclassify_start", args=[project.slug]), follow=True)
    assert b"Apply or discard the last preview" in again.content
    client.post(reverse("failures:reclassification_apply", args=args))
    assert b"being applied" in client.get(url).content
    done(job)
    assert b"being applied" not in client.get(url).content
    page = client.post(reverse("failures:reclassification_discard", args=args), follow=True)
    assert b"already applied or discarded" in page.content


def test_without_diagnoses_there_is_no_diff_to_ask_for() -> None:
    project, client = make_project(), Client()
    client.force_login(make_member(project))
    page = client.get(reverse("failures:reclassify", args=[project.slug]))
    assert b"Nothing is classified yet" in page.content and b"Preview changes" not in page.content


def test_people_who_see_it_otherwise_are_listed(project: Project, client: Client) -> None:
    decide(
        failure=Failure.objects.filter(mode__slug="bad_planning").first(), by=make_member(project)
    )
    finished(project)
    page = client.get(reverse("failures:reclassify", args=[project.slug]), {"show": "people"})
    assert len(page.context["page"]) == 1 and b"Where people disagree" in page.content


SAID = {
    "rule": "judge",
    "message_index": 1,
    "text": "It went in circles.",
    "quote": "again",
    "mode": "bad_planning",
    "confidence": "likely",
    "sure": None,
}


def judged(project: Project) -> tuple[Failure, Failure]:
    """Two undecided failures that the judge spoke of beside the rules: the rules find the first one
    today, not the second.
    """
    rows = list(Failure.objects.filter(project=project).order_by("trajectory_id"))
    for failure in (rows[0], rows[-1]):
        Failure.objects.filter(pk=failure.pk).update(
            evidence=[*failure.evidence, SAID],
            judge_mode="bad_planning",
            mode=rows[0].mode,
            rule_mode="bad_planning",
        )
    return rows[0], rows[-1]


@pytest.mark.proof
def test_what_the_judge_said_stays_beside_the_rules(project: Project, sent: list) -> None:
    """The surer word of the rules decides, and the judge's is kept; where they find nothing now,
    the judge's decides.
    """
    sure, unsure = judged(project)
    job = finished(project)
    assert reclassify.apply(job=job, by=make_member(project, Role.OWNER))
    done(job)
    for failure in (sure, unsure):
        failure.refresh_from_db()
        assert [item for item in failure.evidence if item["rule"] == "judge"] == [SAID]
    assert (sure.mode.slug, sure.source, sure.rule_mode) == (
        "incomplete_execution",
        Source.RULE,
        "incomplete_execution",
    )
    assert (unsure.mode.slug, unsure.source, unsure.rule_mode) == ("bad_planning", Source.JUDGE, "")
    assert not cells(finished(project))


def test_classifying_again_keeps_what_the_judge_said(project: Project) -> None:
    sure, unsure = judged(project)
    classify_project(project=project)
    for failure, expected in (
        (sure, ("incomplete_execution", Source.RULE)),
        (unsure, ("bad_planning", Source.JUDGE)),
    ):
        failure.refresh_from_db()
        assert (failure.mode.slug, failure.source) == expected and SAID in failure.evidence
