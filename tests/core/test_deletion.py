"""A project is renamed, archived, and deleted with all that is in it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from apps.automation import actions as flows
from apps.automation.models import Flow, FlowRun
from apps.automation.specs import FlowError
from apps.core import job_files, runner
from apps.core.api import _trusted
from apps.core.errors import Rejected
from apps.core.kinds import job_models
from apps.core.models import AuditEvent, JobLog, JobState, Project, ProjectDeletion, Role, Stage
from apps.core.projects import deletion, lifecycle
from apps.registry.artifacts import _home
from apps.registry.models import Artifact
from apps.trajectories.models import Content, SearchText, Trajectory
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_base,
    make_key,
    make_member,
    make_project,
    make_trajectory,
)
from tests.test_access import own_world, world  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "SETTLES", timedelta(0))
    monkeypatch.setattr(deletion.time, "sleep", lambda _: None)
    _trusted.clear()


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def quieten(project: Project) -> None:
    """Jobs that no worker of this test has."""
    for model in job_models():
        if model is not ProjectDeletion:
            rows = model._base_manager.filter(project=project, state__in=["queued", "running"])
            rows.update(state=JobState.CANCELLED, finished_at="2026-01-01T00:00Z")


def delete(project: Project) -> ProjectDeletion:
    return lifecycle.delete(project=project, confirm=project.name, by=admin_of(project))


def left(project: Project) -> dict[str, int]:
    found = {
        model._meta.label: deletion.rows_of(model, project).count() for model in deletion.tables()
    }
    return {label: n for label, n in found.items() if n}


def test_every_table_of_a_project_is_known() -> None:
    """A model that names a project by a key that may be empty would be left: it has to be reached
    by one that may not.
    """
    known = {*deletion.tables(), *deletion.KEPT}
    assert not [
        model._meta.label
        for model in apps.get_models(include_auto_created=True)
        if model not in known
        and any(field.is_relation and field.related_model in known for field in model._meta.fields)
        and model._meta.app_label != "auth"
    ]


def test_what_refers_goes_before_what_is_referred_to() -> None:
    order = deletion.groups()
    place = {model: number for number, group in enumerate(order) for model in group}
    for model, number in place.items():
        for field in model._meta.fields:
            if field.is_relation and field.related_model in place:
                assert number <= place[field.related_model], f"{model._meta.label}.{field.name}"


def test_everything_goes_and_nothing_of_others(
    own_world: dict[str, Any],  # noqa: F811
    data_dir: Path,
    monkeypatch: Any,
    django_capture_on_commit_callbacks: Any,
) -> None:
    project, other = own_world["project"], make_project()
    shared, theirs = make_base(other, data_dir), make_trajectory(other)
    make_adapter(other, shared, data_dir)
    before = left(other)
    monkeypatch.setattr(deletion, "CHUNK", 3)
    assert deletion.active_jobs(project)  # which are cancelled first
    had = left(project)
    assert len(had) > 45, had.keys()
    only_here = set(
        Artifact.objects.exclude(model_versions__project=other).values_list("pk", flat=True)
    )
    job = delete(project)
    folder = job_files.job_folder(project.trainingruns.first())
    folder.mkdir(parents=True)
    log = JobLog.objects.create(job=project.trainingruns.first().pk, attempt=1, seq=1, message="x")
    name, old = project.name, project.slug
    with django_capture_on_commit_callbacks(execute=True):
        runner.run(job)
    job.refresh_from_db()
    project.refresh_from_db()
    assert job.state == JobState.SUCCEEDED, job.error
    assert not left(project) and left(other) == before and job.result["rows"] >= sum(had.values())
    assert Content.objects.exists() and set(
        Content.objects.values_list("trajectory_id", flat=True)
    ) == {theirs.pk}
    assert set(SearchText.objects.values_list("trajectory_id", flat=True)) <= {theirs.pk}
    assert not Artifact.objects.filter(pk__in=only_here).exists() and not any(
        _home(pk).exists() for pk in only_here
    )
    assert (
        all(_home(pk).is_dir() for pk in Artifact.objects.values_list("pk", flat=True))
        and Artifact.objects.exists()
    )
    assert not folder.exists() and not JobLog.objects.filter(pk=log.pk).exists()
    assert project.stage == Stage.DELETED and project.name == name and old not in (project.slug, "")
    assert set(project.memberships.values_list("role", flat=True)) == {"owner"}
    assert AuditEvent.objects.filter(project=project, action="channel.initial").exists()
    assert not Project.objects.filter(slug=old).exists()


@pytest.mark.proof
def test_it_goes_on_where_a_worker_died(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(7):
        make_trajectory(project)
    job = delete(project)
    monkeypatch.setattr(deletion, "CHUNK", 2)
    steps, removed = deletion.steps, []

    def dies(job: ProjectDeletion) -> Any:
        for step in steps(job):
            removed.append(step.done)
            if step.done > 4:
                raise KeyboardInterrupt
            yield step

    kind = runner.kind_of(job)
    monkeypatch.setattr(runner, "kind_of", lambda _: type(kind)(queue="default", steps=dies))
    with pytest.raises(KeyboardInterrupt):
        runner.run(job)
    monkeypatch.undo()
    monkeypatch.setattr(deletion, "SETTLES", timedelta(0))
    assert left(project)
    ProjectDeletion.objects.filter(pk=job.pk).update(state=JobState.QUEUED, heartbeat_at=None)
    runner.run(ProjectDeletion.objects.get(pk=job.pk))
    assert not left(project) and Project.objects.get(pk=project.pk).stage == Stage.DELETED


@pytest.mark.proof
def test_what_comes_meanwhile_goes_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    job, remove, came = delete(project), deletion._remove, []

    def late(*given: Any) -> int:
        if not came:
            came.append(make_trajectory(project))
        return remove(*given)

    make_key(project)
    monkeypatch.setattr(deletion, "_remove", late)
    runner.run(job)
    assert came and not left(project)


# Closed


def ways_in(project: Project) -> dict[str, int]:
    headers = key_headers(project)
    post = {"content_type": "application/json", **headers}
    return {
        "send": (
            Client()
            .post(
                "/api/v1/trajectories/",
                '{"id": "a", "messages": [{"role": "user", "content": "x"}]}',
                **post,
            )
            .status_code
        ),
        "otlp": Client().post("/v1/traces", "{}", **post).status_code,
        "read": Client().get("/api/v1/trajectories/", **headers).status_code,
        "project": Client().get("/api/v1/project/", **headers).status_code,
    }


def test_a_project_being_deleted_takes_and_answers_nothing(project: Project) -> None:
    assert max(ways_in(project).values()) < 300
    headers = key_headers(project)
    delete(project)
    _trusted.clear()
    assert set(ways_in(project).values()) == {403}
    assert "is being deleted" in Client().get("/api/v1/trajectories/", **headers).json()["detail"]
    member = client_of(admin_of(project))
    home = member.get(f"/p/{project.slug}/")
    assert home.status_code == 302 and home["Location"].endswith("/deletion/")
    assert member.post(f"/p/{project.slug}/settings/keys/", {"name": "x"}).status_code == 403
    assert member.get(f"/p/{project.slug}/audit/").status_code == 200
    assert b"deleted in the background" in member.get(home["Location"]).content
    assert not Trajectory.objects.filter(project=project, external_id="late").exists()


def test_of_a_deleted_project_owners_read_the_log(project: Project) -> None:
    viewer = make_member(project, Role.VIEWER)
    runner.run(delete(project))
    project.refresh_from_db()
    owner = client_of(admin_of(project))
    assert b"The project is deleted" in owner.get(f"/p/{project.slug}/deletion/").content
    text = owner.get(f"/p/{project.slug}/audit/").content.decode()
    assert f"deleted the project {project.name}" in text and "started the deletion" in text
    assert client_of(viewer).get(f"/p/{project.slug}/audit/").status_code == 404
    listed = owner.get("/?show=deleted").content.decode()
    assert project.slug in listed and project.slug not in owner.get("/?all").content.decode()


def test_an_archived_project_is_read_only(project: Project) -> None:
    by = admin_of(project)
    flow = flows.save_flow(project=project, name="f", spec=flows_spec(), by=by)
    make_trajectory(project)
    assert lifecycle.archive(project=project, by=by) and not lifecycle.archive(
        project=project, by=by
    )
    _trusted.clear()
    assert ways_in(project) == {"send": 403, "otlp": 403, "read": 200, "project": 200}
    member = client_of(by)
    assert member.get(f"/p/{project.slug}/trajectories/").status_code == 200
    refused = member.post(f"/p/{project.slug}/automation/{flow.pk}/run/")
    assert refused.status_code in (403, 404)
    Flow.objects.update(next_run_at="2026-01-01T00:00Z", looked_at="2026-01-01T00:00Z")
    assert flows.tick() == {"clock": 0, "seen": 0} and not FlowRun.objects.exists()
    project.refresh_from_db()
    with pytest.raises(FlowError, match="archived"):
        flows.run_now(flow=Flow.objects.get(pk=flow.pk), by=by)
    assert lifecycle.unarchive(project=project, by=by)
    _trusted.clear()
    assert ways_in(project)["send"] < 300


def flows_spec() -> Any:
    from apps.automation.specs import read_yaml

    return read_yaml('starts: [{by: cron, when: "0 * * * *"}]\nsteps: [{do: classify}]')


def test_nothing_is_started_in_an_archived_project(world: dict[str, Any]) -> None:  # noqa: F811
    project = world["project"]
    quieten(project)
    lifecycle.archive(project=project, by=admin_of(project))
    from apps.failures.reclassify import start

    with pytest.raises(Rejected, match="archived"):
        start(project=project, by=admin_of(project))


def test_a_project_with_jobs_under_way_is_not_archived(world: dict[str, Any]) -> None:  # noqa: F811
    project = world["project"]
    with pytest.raises(Rejected, match="under way"):
        lifecycle.archive(project=project, by=admin_of(project))
    project.refresh_from_db()
    assert project.stage == Stage.ACTIVE
    text = client_of(admin_of(project)).get(f"/p/{project.slug}/settings/project/").content.decode()
    assert "First cancel these jobs" in text


# Pages and API


def test_deleting_says_what_goes_and_wants_the_name(world: dict[str, Any]) -> None:  # noqa: F811
    project = world["project"]
    owner, url = client_of(admin_of(project)), f"/p/{project.slug}/settings/project/delete/"
    text = owner.get(url).content.decode()
    assert ">2 evaluations</a>" in text and "Running jobs that will be cancelled" in text
    for wrong in ("", project.slug, project.name.upper()):
        assert b"Type the name of the project" in owner.post(url, {"confirm": wrong}).content
    assert Project.objects.get(pk=project.pk).stage == Stage.ACTIVE
    assert owner.post(url, {"confirm": project.name}).status_code == 302
    assert Project.objects.get(pk=project.pk).stage == Stage.DELETING
    assert b"is being deleted" in owner.post(url, {"confirm": project.name}).content


def test_a_project_is_renamed(project: Project) -> None:
    owner, other = client_of(admin_of(project)), make_project()
    url = f"/p/{project.slug}/settings/project/"
    taken = owner.post(url, {"name": "New", "slug": other.slug, "description": ""}).content.decode()
    assert "Another project has the short name" in taken
    answer = owner.post(url, {"name": "New <b>", "slug": "new-one", "description": "d"})
    assert answer["Location"] == "/p/new-one/settings/project/"
    assert "New &lt;b&gt;" in owner.get(answer["Location"]).content.decode()
    assert AuditEvent.objects.get(action="project.renamed").detail == {
        "before": project.name,
        "name": "New <b>",
        "slug": "new-one",
    }
    assert Client().get("/api/v1/project/", **key_headers(project)).json()["slug"] == "new-one"


def test_by_api(project: Project) -> None:
    headers = {"content_type": "application/json", **key_headers(project)}
    patch = lambda **given: Client().patch("/api/v1/project/", given, **headers)  # noqa: E731
    assert patch(name="Other").json()["name"] == "Other"
    assert patch(archived=True).json()["stage"] == "archived"
    _trusted.clear()
    assert (
        Client().post("/api/v1/keys/", {"name": "x", "scopes": ["ingest"]}, **headers).status_code
        == 403
    )
    assert patch(archived=False).json()["stage"] == "active"
    assert (
        patch(slug="no way").status_code == 400
        and patch(slug=make_project().slug).status_code == 400
    )
    wrong = Client().delete("/api/v1/project/", {"confirm": "no"}, **headers)
    assert wrong.status_code == 400 and wrong.json()["path"] == "confirm"
    assert Client().delete("/api/v1/project/", {"confirm": "Other"}, **headers).status_code == 202
    assert ProjectDeletion.objects.filter(project=project).exists()


def test_a_deletion_that_stopped_goes_on(project: Project) -> None:
    job = delete(project)
    ProjectDeletion.objects.update(
        state=JobState.FAILED, finished_at="2026-01-01T00:00Z", error="The disk is full."
    )
    owner = client_of(admin_of(project))
    assert b"The disk is full." in owner.get(f"/p/{project.slug}/deletion/").content
    assert (
        client_of(make_member(project, Role.OPERATOR))
        .post(f"/p/{project.slug}/deletion/again/")
        .status_code
        == 403
    )
    owner.post(f"/p/{project.slug}/deletion/again/")
    job.refresh_from_db()
    assert job.state == JobState.QUEUED
