"""Classifying as a job: only what is new, has changed, or was classified by older rules; never in a
request.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import reverse

from apps.core import jobs, runner
from apps.core.models import AuditEvent, Project
from apps.failures import classify_job, tasks
from apps.failures.actions import diagnose
from apps.failures.models import Classification, Classifier, Failure
from apps.failures.rules.reading import Run
from apps.trajectories import digest
from apps.trajectories.actions.deletions import delete
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Trajectory
from tests.factories import make_key, make_member, make_project, row

pytestmark = pytest.mark.django_db
BAD = {"outcome": {"status": "failure"}, "messages": [{"role": "user", "content": "Close it."}]}


@pytest.fixture
def project() -> Project:
    project = make_project()
    send(project, *(row(name=f"r{n}") for n in range(3)))
    return project


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """What the rules are asked about."""
    found: list[Run] = []
    real = diagnose.classify_run
    monkeypatch.setattr(diagnose, "classify_run", lambda given: found.append(given) or real(given))
    return found


def send(project: Project, *rows: dict) -> None:
    ingest(project=project, rows=rows)
    digest.run()


def classified(project: Project) -> Classification:
    job = classify_job.start(project=project, by=None)
    runner.run(job)
    job.refresh_from_db()
    assert job.state == "succeeded", job.error
    return job


def test_the_first_time_all_and_then_only_what_is_new(project: Project, looked: list[Run]) -> None:
    assert classified(project).result["looked"] == 3 == len(looked)
    assert classified(project).result == {"looked": 0, "found": 0} and len(looked) == 3
    send(project, row(name="new") | BAD)
    job = classified(project)
    assert job.result == {"looked": 1, "found": 1} and len(looked) == 4
    assert Failure.objects.get(trajectory__external_id="new")
    assert AuditEvent.objects.filter(action="failures.classified").count() == 3


def test_what_changed_is_classified_again(project: Project, looked: list[Run]) -> None:
    classified(project)
    send(project, row(name="r1") | BAD)
    assert classified(project).result == {"looked": 1, "found": 1}
    assert [run.status for run in looked[3:]] == ["failure"]


def test_what_was_removed_is_forgotten(project: Project, looked: list[Run]) -> None:
    classified(project)
    send(project, row(name="r1") | BAD)
    delete(trajectory=Trajectory.objects.get(external_id="r1"))
    digest.run()
    assert classified(project).result["looked"] == 0 and not project.unclassified.exists()


def test_newer_rules_go_through_everything_once(
    project: Project, looked: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    classified(project)
    monkeypatch.setattr(classify_job, "RULES_VERSION", classify_job.RULES_VERSION + 1)
    assert classify_job.count(project) == 3
    assert classified(project).result["looked"] == 3 and len(looked) == 6
    assert classified(project).result["looked"] == 0


def test_what_comes_while_everything_is_gone_through_is_not_missed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_job, "CHUNK", 1)
    real, sent = classify_job._classify, []

    def classify(*args: Any) -> None:
        real(*args)
        if not sent:  # older than what the pass has reached
            sent.append(send(project, row(name="late", started_at="2024-01-01T00:00:00Z") | BAD))

    monkeypatch.setattr(classify_job, "_classify", classify)
    assert classified(project).result["looked"] == 4
    assert Failure.objects.get(trajectory__external_id="late")


def test_a_killed_worker_is_followed_by_one_that_goes_on(
    project: Project, looked: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify_job, "CHUNK", 1)
    job = classify_job.start(project=project, by=None)
    assert job.claim("a worker that died")
    steps = classify_job.steps(job)
    for _ in range(2):
        runner.step(job, steps, None)
    job.refresh_from_db()
    assert job.done == 1 and job.requeue(Classification.objects.all())
    runner.run(job)
    job.refresh_from_db()
    assert job.result["looked"] == 3 == len(looked) and job.attempt == 2


def test_one_at_a_time(project: Project) -> None:
    job = classify_job.start(project=project, by=None)
    assert classify_job.start(project=project, by=None) == job


def test_other_projects_are_left_alone(project: Project, looked: list[Run]) -> None:
    other = make_project()
    send(other, row())
    classified(project)
    assert len(looked) == 3 and not Classifier.objects.filter(project=other).exists()


def test_no_request_classifies(project: Project, looked: list[Run], client: Client) -> None:
    client.force_login(make_member(project))
    client.post(reverse("failures:classify", args=[project.slug]))
    assert looked == [] and Classification.objects.get().state == "queued"
    page = client.get(reverse("failures:list", args=[project.slug])).content.decode()
    assert "Classifying: 0 of 3 trajectories" in page
    status = reverse("failures:classification_status", args=[project.slug])
    assert "HX-Refresh" not in client.get(status, headers={"HX-Request": "true"}).headers
    runner.run(Classification.objects.get())
    assert client.get(status, headers={"HX-Request": "true"}).headers["HX-Refresh"] == "true"
    assert len(looked) == 3
    again = client.post(
        reverse("failures:classify", args=[project.slug]), follow=True
    ).content.decode()
    assert (
        "No new or changed trajectories to classify." in again
        and "Nothing new to classify." in again
    )
    assert "0 of 0" not in again


def test_what_arrives_is_classified_without_anybody(project: Project, looked: list[Run]) -> None:
    assert classify_job.due() == [project]
    assert classify_job.classify_new(project, for_s=5) == 0 and len(looked) == 0
    assert classify_job.due() == []  # a job goes through what was there before
    runner.run(Classification.objects.get())
    assert len(looked) == 3 and classify_job.due() == []
    send(project, row(name="new") | BAD)
    lines = AuditEvent.objects.count()
    assert classify_job.due() == [project] and classify_job.classify_new(project, for_s=5) == 1
    assert Failure.objects.get().trajectory.external_id == "new"
    assert (classify_job.due(), Classification.objects.count(), AuditEvent.objects.count()) == (
        [],
        1,
        lines,
    )


def test_the_tick_sends_a_task_for_each_project_with_news(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project()  # nothing has come here
    archived = make_project()
    send(archived, row())
    Project.objects.filter(pk=archived.pk).update(stage="archived")
    sent: list[int] = []
    monkeypatch.setattr(tasks.classify_new_of, "apply_async", lambda args, **_: sent.extend(args))
    assert tasks.classify_new() == 1 and sent == [project.pk]
    assert tasks.classify_new_of(archived.pk) == 0 and not archived.classifications.exists()


@pytest.mark.proof
def test_an_error_becomes_a_job_that_shows_it_and_is_not_repeated(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    classified(project)
    send(project, row(name="new") | BAD)

    def broken(given: dict) -> None:
        raise ValueError("a fault in a rule")

    with monkeypatch.context() as patched:
        patched.setattr(diagnose, "classify_run", broken)
        assert classify_job.classify_new(project, for_s=5) == 0
        assert project.unclassified.count() == 1
        runner.run(Classification.objects.active().get())
        assert classify_job.due() == []
    classified(project)
    assert not project.unclassified.exists() and Failure.objects.count() == 1
    send(project, row(name="r1") | BAD)
    assert classify_job.due() == [project]


def test_a_database_that_is_away_starts_no_job(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    classified(project)
    send(project, row(name="new") | BAD)

    def away(given: dict) -> None:
        raise OperationalError("the connection is gone")

    monkeypatch.setattr(diagnose, "classify_run", away)
    with pytest.raises(OperationalError):
        classify_job.classify_new(project, for_s=5)
    assert project.unclassified.count() == 1 and not Classification.objects.active().exists()


def test_a_first_pass_that_was_cancelled_with_its_flow_is_made_up_for(project: Project) -> None:
    jobs.cancel(classify_job.start(project=project, by=None), by=None)
    assert classify_job.due() == [project]


def test_classifying_by_api(project: Project, client: Client) -> None:
    url, headers = "/api/v1/classification/", {"Authorization": f"Bearer {make_key(project)}"}
    assert client.get(url, headers=headers).json() == {"waiting": 3, "job": None}
    started = client.post(url, headers=headers)
    assert started.status_code == 202 and started.json()["job"]["state"] == "queued"
    assert client.post(url, headers=headers).json()["job"]["id"] == started.json()["job"]["id"]
    runner.run(Classification.objects.get())
    found = client.get(url, headers=headers).json()
    assert found["waiting"] == 0 and found["job"]["result"] == {"looked": 3, "found": 0}
