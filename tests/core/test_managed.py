"""Objects are renamed, archived and deleted; what lineage needs is archived only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse

from apps.core import job_files
from apps.core.auditing.words import page_of
from apps.core.managed import objects as managed
from apps.core.managed.objects import KINDS, ManagedError, find
from apps.core.models import AuditEvent, JobState, Project, Role
from apps.evals.models import EvalRun, EvalSet, Split, Task
from apps.registry.artifacts import _home
from apps.registry.models import Artifact, ModelVersion
from apps.training.actions import TrainingError, freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from tests.factories import (
    admin_of,
    key_headers,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_member,
    make_project,
    make_user,
)
from tests.test_access import own_world as world  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def remove(row: Any, kind: str) -> None:
    managed.delete(managed=KINDS[kind], row=row, by=admin_of(row.project))


def address(project: Project, kind: str, row: Any, what: str = "") -> str:
    return f"/p/{project.slug}/manage/{kind}/{row.pk}/{what}"


def test_kinds_are_what_can_be_archived() -> None:
    assert set(KINDS) == {"set", "model", "environment", "evaluation", "run", "channel"}
    for how in KINDS.values():
        assert how.model._meta.get_field("archived_at").null and how.model._meta.get_field(how.name)


# Deleting


def test_what_lineage_needs_cannot_be_deleted(world: dict[str, Any]) -> None:  # noqa: F811
    project = world["project"]
    run = project.trainingruns.get()
    TrainingRun.objects.filter(pk=run.pk).update(
        state=JobState.CANCELLED, finished_at="2026-01-01T00:00Z"
    )
    for kind, rows in (
        ("set", project.eval_sets),
        ("model", project.model_versions),
        ("environment", project.environments),
    ):
        used = [row for row in rows.all() if managed.dependents(row).in_way]
        assert used, kind
        for row in used:
            with pytest.raises(ManagedError, match=r"cannot be deleted|under way"):
                remove(row, kind)
            assert rows.filter(pk=row.pk).exists()


@pytest.mark.proof
def test_a_run_that_made_a_model_is_kept(world: dict[str, Any]) -> None:  # noqa: F811
    project = world["project"]
    run = project.trainingruns.get()
    TrainingRun.objects.filter(pk=run.pk).update(
        state=JobState.SUCCEEDED,
        finished_at="2026-01-01T00:00Z",
        model_version=project.model_versions.adapters().first(),
    )
    run.refresh_from_db()
    with pytest.raises(ManagedError, match="is part of the lineage of adapter-v1"):
        remove(run, "run")
    with pytest.raises(
        ManagedError, match=r"1 evaluation depends on it\.$"
    ):  # under trial, so it cannot be archived either
        remove(run.model_version, "model")


@pytest.mark.proof
def test_a_run_that_made_nothing_goes_with_its_folder(
    world: dict[str, Any],  # noqa: F811
    django_capture_on_commit_callbacks: Any,
) -> None:
    run = world["project"].trainingruns.get()
    with pytest.raises(ManagedError, match="under way"):
        remove(run, "run")
    TrainingRun.objects.filter(pk=run.pk).update(
        state=JobState.FAILED, finished_at="2026-01-01T00:00Z"
    )
    run.refresh_from_db()
    run.metrics.create(step=1, name="loss", value=1.0)
    job_files.job_folder(run).mkdir(parents=True)
    with django_capture_on_commit_callbacks(execute=True):
        remove(run, "run")
    assert not TrainingRun.objects.exists() and not job_files.job_folder(run).exists()
    assert AuditEvent.objects.get(action="object.deleted").detail["goes"]["metric"] == 1


def test_an_unused_model_goes_with_its_files(
    project: Project, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    base = make_base(project, data_dir)
    adapter = make_adapter(project, base, data_dir)
    digest = adapter.artifact_id
    with pytest.raises(ManagedError, match="1 model version"):
        remove(base, "model")
    with django_capture_on_commit_callbacks(execute=True):
        remove(adapter, "model")
    assert not Artifact.objects.filter(pk=digest).exists() and not _home(digest).exists()
    remove(base, "model")
    assert not ModelVersion.objects.filter(project=project).exists()


def test_files_that_another_project_has_stay(
    project: Project, data_dir: Path, django_capture_on_commit_callbacks: Any
) -> None:
    mine, theirs = make_base(project, data_dir), make_base(make_project(), data_dir)
    adapter, other = (
        make_adapter(project, mine, data_dir),
        make_adapter(theirs.project, theirs, data_dir),
    )
    ModelVersion.objects.filter(pk=other.pk).update(artifact=adapter.artifact)
    with django_capture_on_commit_callbacks(execute=True):
        remove(adapter, "model")
    assert (
        _home(adapter.artifact_id).is_dir()
        and Artifact.objects.filter(pk=adapter.artifact_id).exists()
    )


def test_a_frozen_hold_out_stays_one_and_a_set_without_any_goes(project: Project) -> None:
    """Deleting it would let its tasks train."""
    made = make_eval_set(project)
    owner = client_of(admin_of(project))
    found = managed.dependents(made)
    assert (
        not found.may_be_deleted and "deleting it would let them be trained on." in found.sentence
    )
    page = owner.get(address(project, "set", made)).content.decode()
    assert page.count("Archive it instead.") == 1
    owner.post(address(project, "set", made, "delete/"), {"name": str(made)})
    assert made.tasks.holdout().exists()
    with pytest.raises(ManagedError, match="Archive it"):
        remove(made, "set")
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SET session_replication_role = replica")
        made.tasks.holdout().update(split=Split.REGRESSION)
        cursor.execute("SET session_replication_role = DEFAULT")
    remove(made, "set")
    assert not EvalSet.objects.exists() and not Task.objects.exists()
    other = make_eval_set(project)  # the trigger guards frozen sets again
    with pytest.raises(IntegrityError, match="frozen"), transaction.atomic():
        other.tasks.filter(split=Split.HOLDOUT).delete()


# Renaming


def test_all_versions_are_renamed(project: Project) -> None:
    made = make_eval_set(project)
    EvalSet.objects.create(project=project, slug=made.slug, version=2)
    owner = client_of(admin_of(project))
    answer = owner.post(address(project, "set", made, "rename/"), {"name": "refunds"}, follow=True)
    assert "Renamed to refunds@1." in answer.content.decode()
    assert set(EvalSet.objects.values_list("slug", "version")) == {("refunds", 1), ("refunds", 2)}
    assert AuditEvent.objects.get(action="object.renamed").detail["before"] == made.slug


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("name", ["", " ", "two words", "<b>", "x" * 200, "taken"])
def test_a_wrong_name_is_refused(project: Project, name: str) -> None:
    made = make_eval_set(project)
    EvalSet.objects.create(project=project, slug="taken")
    answer = client_of(admin_of(project)).post(
        address(project, "set", made, "rename/"), {"name": name}
    )
    made.refresh_from_db()
    assert (
        answer.status_code == 200
        and 'role="alert"' in answer.content.decode()
        and made.slug not in (name, "")
    )
    assert "<b>" not in answer.content.decode().split('id="name"')[1].split(">")[0]


# Archiving


def choices(page: str, field: str) -> list[str]:
    """What a form's select offers: rows of different kinds may have the same key."""
    (select,) = re.findall(rf'<select name="{field}".*?</select>', page, re.DOTALL)
    return re.findall(r'<option value="([^"]+)"', select)


def test_what_is_archived_leaves_lists_and_choices_and_comes_back(
    project: Project, data_dir: Path
) -> None:
    made, environment, base = (
        make_eval_set(project),
        make_environment(project),
        make_base(project, data_dir),
    )
    owner = client_of(admin_of(project))
    lists = {
        "set": ("evals", "eval_set", made),
        "environment": ("environments", "environment", environment),
        "model": ("models", "parent", base),
    }
    form = f"/p/{project.slug}/training/new/"
    for kind, (place, field, row) in lists.items():
        page, link = (
            f"/p/{project.slug}/{place}/",
            f'"{page_of(row._meta.label_lower, str(row.pk), project.slug)}"',
        )
        assert link in owner.get(page).content.decode(), kind
        assert str(row.pk) in choices(owner.get(form).content.decode(), field), kind
        owner.post(address(project, kind, row, "archive/"))
        assert link not in owner.get(page).content.decode(), kind
        assert str(row.pk) not in choices(owner.get(form).content.decode(), field), kind
        assert link in owner.get(f"{page}?archived").content.decode(), kind
        text = owner.get(address(project, kind, row)).content.decode()
        assert "Unarchive" in text and ">archived</span>" in text
        owner.post(address(project, kind, row, "archive/"), {"back": "1"})
        assert link in owner.get(page).content.decode(), kind
    said = list(
        AuditEvent.objects.filter(action__startswith="object.").values_list("action", flat=True)
    )
    assert said.count("object.archived") == said.count("object.unarchived") == 3


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("kind", ["set", "environment", "model"])
def test_nothing_is_started_with_what_is_archived(
    project: Project, data_dir: Path, kind: str
) -> None:
    rows = {
        "set": make_eval_set(project),
        "environment": make_environment(project),
        "model": make_base(project, data_dir),
    }
    managed.archive(managed=KINDS[kind], row=rows[kind], by=None)
    for row in rows.values():
        row.refresh_from_db()
    headers = key_headers(project, may_see_holdout=True)
    asked = {
        "eval_set": str(rows["set"]),
        "environment": str(rows["environment"]),
        "model_version": str(rows["model"]),
    }
    answer = Client().post("/api/v1/eval-runs/", asked, content_type="application/json", **headers)
    assert answer.status_code == 409 and f"{rows[kind]} is archived" in answer.json()["detail"]
    page = client_of(admin_of(project)).post(
        reverse("evals:new_run", args=[project.slug, rows["set"].pk]),
        {
            "environment": rows["environment"].pk,
            "model_version": rows["model"].pk,
            "split": "train",
            "samples_per_task": 1,
            "seed": 0,
        },
        follow=True,
    )
    assert page.status_code == 200 and not project.evalruns.exists()
    if kind != "set":
        with pytest.raises(TrainingError, match="is archived"):
            submit_training(
                project=project,
                method=Method.GRPO,
                parent=rows["model"],
                environment=rows["environment"],
                config={},
                dataset=freeze_dataset(eval_set=rows["set"], by=None),
                by=admin_of(project),
            )


@pytest.mark.proof
def test_an_evaluation_leaves_lists_and_choices_and_goes_where_nothing_needs_it(
    project: Project, data_dir: Path
) -> None:
    base, environment, eval_set = (
        make_base(project, data_dir),
        make_environment(project),
        make_eval_set(project),
    )
    held, practice = (make_eval_run(eval_set, base, environment) for _ in range(2))
    EvalRun.objects.filter(pk=practice.pk).update(split=Split.TRAIN)
    client = client_of(admin_of(project))
    manage = f"/p/{project.slug}/manage/evaluation/{practice.pk}/"
    assert manage in client.get(practice.get_absolute_url()).content.decode()
    client.post(f"{manage}rename/", {"name": "practice"})
    client.post(f"{manage}archive/")
    listed = f"/p/{project.slug}/evals/"
    assert practice.get_absolute_url() not in client.get(listed).content.decode()
    assert practice.get_absolute_url() in client.get(f"{listed}?archived").content.decode()
    assert "archived</span> practice" in client.get(practice.get_absolute_url()).content.decode()
    client.post(f"{manage}archive/", {"back": "1"})
    assert practice.get_absolute_url() in client.get(listed).content.decode()
    trained = TrainingRun.objects.create(
        project=project,
        method=Method.GRPO,
        parent=base,
        environment=environment,
        name="t",
        spec={"picked_by": str(practice.pk)},
        dataset=freeze_dataset(eval_set=eval_set, by=None),
    )
    client.post(f"{manage}delete/")
    assert "It was used to pick the tasks of a training run" in client.get(manage).content.decode()
    trained.delete()
    client.post(f"{manage}delete/")
    client.post(f"/p/{project.slug}/manage/evaluation/{held.pk}/delete/")
    assert list(project.evalruns.all()) == [held]
    assert (
        "It ran on a hold-out"
        in client.get(f"/p/{project.slug}/manage/evaluation/{held.pk}/").content.decode()
    )


def test_a_live_model_is_not_archived(world: dict[str, Any]) -> None:  # noqa: F811
    project = world["project"]
    live = project.channels.get(name="production").current
    with pytest.raises(ManagedError, match="live in production"):
        managed.archive(managed=KINDS["model"], row=live, by=None)


# Who may


def test_only_owners_delete_and_strangers_find_nothing(project: Project) -> None:
    made = make_eval_set(project, frozen=False)
    engineer = client_of(make_member(project, Role.ENGINEER))
    text = engineer.get(address(project, "set", made)).content.decode()
    assert "Only project owners can delete it." in text and "/delete/" not in text
    assert engineer.post(address(project, "set", made, "delete/")).status_code == 403
    assert client_of(make_user()).get(address(project, "set", made)).status_code == 404
    other = make_eval_set(make_project(), frozen=False)
    owner = client_of(admin_of(project))
    for kind, pk in (
        ("set", other.pk),
        ("set", "nonsense"),
        ("nonsense", made.pk),
        ("model", "9" * 40),
        ("run", "1"),
    ):
        assert owner.get(f"/p/{project.slug}/manage/{kind}/{pk}/").status_code == 404, (kind, pk)
    assert owner.post(address(project, "set", made, "delete/"))["Location"].endswith("/evals/")
    assert not EvalSet.objects.filter(pk=made.pk).exists()


@pytest.mark.proof
def test_by_api(project: Project, data_dir: Path) -> None:
    made, base = make_eval_set(project, frozen=False), make_base(project, data_dir)
    make_adapter(project, base, data_dir)
    headers = {"content_type": "application/json", **key_headers(project)}
    url = f"/api/v1/objects/set/{made.pk}/"
    assert Client().get(url, **headers).json()["may_be_deleted"] is True
    assert Client().patch(url, {"name": "new", "archived": True}, **headers).json()["archived_at"]
    assert Client().patch(url, {"name": "no way"}, **headers).json()["path"] == "name"
    assert (
        Client().delete(url, **headers).status_code == 204
        and Client().get(url, **headers).status_code == 404
    )
    refused = Client().delete(f"/api/v1/objects/model/{base.pk}/", **headers)
    assert refused.status_code == 409 and "Archive it instead" in refused.json()["detail"]
    label = AuditEvent.objects.filter(action="object.deleted").get().actor_label
    assert label == "API key “test”"


def test_somebody_else_deleted_it_meanwhile(project: Project) -> None:
    made = make_eval_set(project, frozen=False)
    how, row = find(project, "set", str(made.pk))
    made.delete()
    with pytest.raises(ManagedError, match="deleted already"):
        managed.delete(managed=how, row=row, by=None)


def test_its_page_belongs_to_the_section_of_its_list(project: Project) -> None:
    made = make_eval_set(project, frozen=False)
    shown = client_of(admin_of(project)).get(address(project, "set", made))
    assert shown.context["section"] == "evals"
