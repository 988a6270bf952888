"""What a channel, its history or a lineage needs stays, by every way in which versions are
deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps.core import bus
from apps.core.managed import objects
from apps.core.models import Project
from apps.promotion.models import Channel, Promotion
from apps.registry.artifacts import NeededArtifacts, _home, free_with, local_path, store_folder
from apps.registry.models import Artifact, ModelVersion
from apps.training.models import Method, TrainingRun
from tests.factories import admin_of, make_adapter, make_environment, make_eval_run, make_eval_set

pytestmark = pytest.mark.django_db


@pytest.fixture
def adapter(project: Project, base: ModelVersion, data_dir: Path) -> ModelVersion:
    return make_adapter(project, base, data_dir)


def deleted(version: ModelVersion) -> bool:
    try:
        objects.delete(managed=objects.KINDS["model"], row=version, by=admin_of(version.project))
    except objects.ManagedError:
        return False
    return True


def live(version: ModelVersion, **_: Any) -> None:
    Channel.objects.create(project=version.project, name="production", current=version)


def to_roll_back_to(version: ModelVersion, data_dir: Path, **_: Any) -> None:
    after = make_adapter(version.project, version.parent, data_dir)
    channel = Channel.objects.create(project=version.project, name="production", current=after)
    for one in (version, after):
        Promotion.objects.create(channel=channel, kind=Promotion.Kind.INITIAL, to_version=one)


def parent(version: ModelVersion, data_dir: Path, **_: Any) -> None:
    make_adapter(version.project, version, data_dir)


def evaluated(version: ModelVersion, **_: Any) -> None:
    make_eval_run(make_eval_set(version.project), version, make_environment(version.project))


def teacher(version: ModelVersion, **_: Any) -> None:
    from apps.training.actions import freeze_dataset

    dataset = freeze_dataset(eval_set=make_eval_set(version.project), by=None)
    TrainingRun.objects.create(
        project=version.project,
        name="distilled",
        method=Method.GRPO,
        parent=version.parent,
        dataset=dataset,
        environment=make_environment(version.project),
        spec={"teacher": version.pk, "config": {}},
    )


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("needed", [live, to_roll_back_to, parent, evaluated, teacher])
def test_what_is_needed_cannot_be_deleted(
    adapter: ModelVersion, data_dir: Path, needed: Any
) -> None:
    needed(adapter, data_dir=data_dir)
    assert not deleted(adapter) and local_path(adapter.artifact).is_dir()


def test_what_nothing_needs_goes_with_its_files(
    adapter: ModelVersion, django_capture_on_commit_callbacks: Any
) -> None:
    digest = adapter.artifact_id
    with django_capture_on_commit_callbacks(execute=True):
        assert deleted(adapter)
    assert not Artifact.objects.filter(pk=digest).exists() and not _home(digest).exists()


def test_what_a_floor_above_needs_stays(
    adapter: ModelVersion, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    """As an adapter that a cluster's job has sent, before its version is made."""
    all_of_them = bus.Listener("all of them", lambda question: set(question.digests))
    monkeypatch.setitem(bus.LISTENERS, NeededArtifacts, [all_of_them])
    artifact = adapter.artifact
    with django_capture_on_commit_callbacks(execute=True):
        assert deleted(adapter)
    assert local_path(artifact).is_dir() and Artifact.objects.filter(pk=artifact.pk).exists()


def test_an_adapter_that_a_cluster_has_sent_is_needed(
    project: Project, base: ModelVersion, data_dir: Path
) -> None:
    from apps.training.actions import freeze_dataset

    adapter = make_adapter(project, base, data_dir)
    run = TrainingRun.objects.create(
        project=project,
        name="on rays",
        method=Method.SFT,
        parent=base,
        environment=make_environment(project),
        dataset=freeze_dataset(eval_set=make_eval_set(project), by=None),
        spec={"config": {}},
        result={"returned": {"artifact": adapter.artifact_id, "rank": 2}},
    )
    needed = bus.ask(NeededArtifacts({adapter.artifact_id, "other"}))
    assert run.is_active and needed == [{adapter.artifact_id}]


def test_the_same_content_in_another_version_stays(
    project: Project, adapter: ModelVersion, tmp_path: Path, django_capture_on_commit_callbacks: Any
) -> None:
    rows = ModelVersion.objects.filter(pk=adapter.pk)
    assert store_folder(_home(adapter.artifact_id)) == adapter.artifact
    with django_capture_on_commit_callbacks(execute=True):
        free_with(
            rows
        )()  # the version is still there, as another one with the same content would be
    assert local_path(adapter.artifact).is_dir()
