"""An adapter merged into its base: made once, offered where the version is, and gone with it."""

from __future__ import annotations

import io
import shutil
import tarfile
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client, TestCase

from apps.core import job_files, jobs, runner
from apps.core.actions import create_api_key
from apps.core.bus import ask
from apps.core.managed import objects
from apps.core.models import AuditEvent, Project, Role
from apps.core.projects.deletion import Deleting
from apps.core.scopes import Scope
from apps.promotion.models import Channel
from apps.registry import merging
from apps.registry.actions import ModelError, register_adapter, register_base
from apps.registry.artifacts import _home, free_with, local_path, store_folder
from apps.registry.models import Artifact, MergedModel, MergeJob, ModelVersion
from tests import warm
from tests.factories import admin_of, key_headers, make_adapter, make_member, make_project
from tests.workers.conftest import make_tiny_model
from tests.workers.test_merge_adapter import tuned

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "enqueue", lambda job: None)


@pytest.fixture
def adapter(project: Project, base: ModelVersion, data_dir: Path) -> ModelVersion:
    return make_adapter(project, base, data_dir)


def run(job: MergeJob) -> MergeJob:
    with TestCase.captureOnCommitCallbacks(execute=True), warm.jobs():
        runner.run(job)
    job.refresh_from_db()
    return job


def call(version: ModelVersion, method: str = "post", **headers: str) -> Any:
    address = f"/api/v1/model-versions/{version.pk}/merge/"
    return getattr(Client(), method)(address, **(headers or key_headers(version.project)))


def merged_of(version: ModelVersion, folder: Path) -> MergedModel:
    """As its job would have stored it."""
    folder = folder / "merged"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"merged")
    return MergedModel.objects.create(
        version=version, artifact=store_folder(folder), dtype="float32", gap=0.0
    )


def page_of(version: ModelVersion, role: Role = Role.ENGINEER) -> str:
    client = Client()
    client.force_login(make_member(version.project, role))
    return client.get(f"/p/{version.project.slug}/models/{version.pk}/").content.decode()


def test_a_real_adapter_is_merged_by_a_real_process_and_downloaded(
    project: Project, data_dir: Path, tmp_path: Path
) -> None:
    import torch

    from workers.ml.models import load_base, load_policy

    by, folder = admin_of(project), make_tiny_model(data_dir / "tiny")
    base = register_base(project=project, name="tiny", folder=folder, by=by)
    artifact = store_folder(tuned(folder, tmp_path / "adapter", ["q_proj", "v_proj"]))
    version = register_adapter(
        project=project, name="tuned", parent=base, artifact=artifact, lineage={}, by=by
    )
    Channel.objects.create(project=project, name="production", current=version)
    headers = key_headers(project)
    assert Client().get("/api/v1/channels/production/", **headers).json()["merged"] is None
    assert call(version).status_code == 202 and "Waiting for a worker" in page_of(version)
    job = run(MergeJob.objects.get())
    assert job.state == "succeeded", job.error
    assert not (job_files.job_folder(job) / "out").exists()
    merged = MergedModel.objects.get(version=version)
    assert merged.dtype == "float32" and merged.gap < 1e-3 and merged.artifact.size > 100_000
    live = Client().get("/api/v1/channels/production/", **headers).json()["merged"]
    assert live["artifact"] == merged.artifact_id and live["size"] == merged.artifact.size
    link = live["download"]["url"].removeprefix("http://testserver")
    body = b"".join(Client().get(link).streaming_content)
    assert Client().get(link).status_code == 410, "once"
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        archive.extractall(tmp_path / "out")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        ours = load_base(tmp_path / "out")[0](ids).logits
        theirs = load_policy(folder, local_path(version.artifact))[0](ids).logits
        bare = load_base(folder)[0](ids).logits
    assert torch.allclose(ours, theirs, atol=1e-3) and not torch.allclose(ours, bare, atol=0.1)
    assert (
        AuditEvent.objects.get(action="model_version.downloaded").detail["digest"]
        == merged.artifact_id
    )


def base_gone(version: ModelVersion, **_: Any) -> str:
    shutil.rmtree(version.base)
    return "is missing"


def base_altered(version: ModelVersion, **_: Any) -> str:
    (Path(version.base) / "model.safetensors").write_bytes(b"others!")
    return "has other weights than"


def adapter_altered(version: ModelVersion, **_: Any) -> str:
    (_home(version.artifact_id) / "adapter_model.safetensors").write_bytes(b"x")
    return "was altered"


def disk_full(version: ModelVersion, monkeypatch: pytest.MonkeyPatch) -> str:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 2**20, 2**20))
    return "64 MiB are needed and 1 MiB are free"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("spoil", [base_gone, base_altered, adapter_altered, disk_full])
def test_what_cannot_be_merged_says_why_before_anything_is_written(
    adapter: ModelVersion, monkeypatch: pytest.MonkeyPatch, spoil: Any
) -> None:
    monkeypatch.setattr(
        runner.children, "start", lambda *args: pytest.fail("a process was started")
    )
    assert call(adapter).status_code == 202
    sentence = spoil(adapter, monkeypatch=monkeypatch)
    job = run(MergeJob.objects.get())
    assert job.state == "failed" and sentence in job.error and not MergedModel.objects.exists()
    said = call(adapter, "get").json()
    assert said["state"] == "failed" and said["error"] == job.error and said["merged"] is None
    page = page_of(adapter)
    assert sentence in page and "Merge into the base" in page, "and it can be asked for again"
    assert call(adapter).status_code == 202 and MergeJob.objects.active().count() == 1


def test_only_adapters_and_only_ones_own(adapter: ModelVersion, base: ModelVersion) -> None:
    refused = call(base)
    assert refused.status_code == 409 and "not a LoRA adapter" in refused.json()["detail"]
    theirs = key_headers(make_project())
    assert call(adapter, **theirs).status_code == call(adapter, "get", **theirs).status_code == 404
    by = make_member(adapter.project, Role.VIEWER)
    reading = create_api_key(project=adapter.project, name="reads", by=by, scopes=[Scope.READ])[1]
    assert call(adapter, HTTP_AUTHORIZATION=f"Bearer {reading}").status_code == 403
    assert not MergeJob.objects.exists() and "Merge into the base" not in page_of(base)
    assert "Merge into the base" not in page_of(adapter, Role.VIEWER)


def test_what_is_there_is_not_made_again(adapter: ModelVersion, tmp_path: Path) -> None:
    merged = merged_of(adapter, tmp_path)
    answer = call(adapter)
    assert answer.status_code == 200 and answer.json()["merged"]["artifact"] == merged.artifact_id
    page = page_of(adapter, Role.VIEWER)
    assert "Merge into the base" not in page and f"/models/{adapter.pk}/download/?merged=1" in page
    client = Client()
    client.force_login(make_member(adapter.project, Role.ENGINEER))
    client.post(f"/p/{adapter.project.slug}/models/{adapter.pk}/merge/")
    assert not MergeJob.objects.exists()
    got = client.get(f"/p/{adapter.project.slug}/models/{adapter.pk}/download/?merged=1")
    with tarfile.open(fileobj=io.BytesIO(b"".join(got.streaming_content))) as archive:
        assert archive.extractfile("model.safetensors").read() == b"merged"
        card = archive.extractfile("README.md").read().decode()
    head = card.split("---")[1]
    assert (
        "library_name: transformers" in head
        and "pipeline_tag: text-generation" in head
        and "peft" not in head
    )
    assert "base_model_relation" not in card and "a whole model in float32" in card
    assert (
        all(entry["sha256"] in card for entry in merged.artifact.files)
        and merged.artifact_id in card
    )
    assert (
        "library_name: peft"
        in Client()
        .get(f"/api/v1/model-versions/{adapter.pk}/card/", **key_headers(adapter.project))
        .json()["markdown"]
    )


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_job_comes(adapter: ModelVersion) -> None:
    found, gate = [], threading.Barrier(4)

    def ask() -> None:
        gate.wait()
        found.append(merging.merge(version=adapter, by=None))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {job.pk for job in found} == {MergeJob.objects.get().pk} and len(found) == 4


def test_it_is_kept_with_its_version_and_goes_with_it(
    adapter: ModelVersion, tmp_path: Path, django_capture_on_commit_callbacks: Any
) -> None:
    merged = merged_of(adapter, tmp_path)
    free_with(ModelVersion.objects.filter(pk=adapter.pk))()
    managed, by = objects.KINDS["model"], admin_of(adapter.project)
    channel = Channel.objects.create(project=adapter.project, name="production", current=adapter)
    with pytest.raises(objects.ManagedError):
        objects.delete(managed=managed, row=adapter, by=by)
    assert local_path(merged.artifact).is_dir()
    channel.delete()
    with django_capture_on_commit_callbacks(execute=True):
        objects.delete(managed=managed, row=adapter, by=by)
    assert (
        not Artifact.objects.filter(pk=merged.artifact_id).exists()
        and not _home(merged.artifact_id).exists()
    )


def test_a_deleted_project_takes_its_merged_models_along(
    adapter: ModelVersion, tmp_path: Path, django_capture_on_commit_callbacks: Any
) -> None:
    """Its rows go before those of its versions."""
    merged, rows = merged_of(adapter, tmp_path), MergedModel.objects.filter(version=adapter)
    after = ask(Deleting(rows))
    with django_capture_on_commit_callbacks(execute=True):
        rows.delete()
        [free() for free in after]
    assert (
        not Artifact.objects.filter(pk=merged.artifact_id).exists()
        and not _home(merged.artifact_id).exists()
    )
    assert local_path(adapter.artifact).is_dir()


def test_space_is_asked_for_twice(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 2 * 10**9 + merging.SPARE))
    merging.require_space(10**9)
    with pytest.raises(ModelError, match="twice"):
        merging.require_space(10**9 + 1)
