from __future__ import annotations

import os
from pathlib import Path

import pytest

from apps.registry.actions import ModelError, register_base
from apps.registry.artifacts import ArtifactError, local_path, store_folder
from apps.registry.engines import model_spec
from tests.factories import admin_of, make_adapter, make_base, make_base_folder, make_project

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, data_dir: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "adapter_model.safetensors").write_bytes(b"weights")
    return source


def test_the_same_folder_twice_is_one_artifact(folder: Path) -> None:
    first, second = store_folder(folder), store_folder(folder)
    assert first == second
    assert (local_path(first) / "adapter_model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "x.pkl", "run.py"])
def test_what_may_hold_code_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"")
    with pytest.raises(ArtifactError, match=name):
        store_folder(folder)


def test_links_are_refused(folder: Path) -> None:
    (folder / "config.json").symlink_to("/etc/passwd")
    with pytest.raises(ArtifactError, match="links"):
        store_folder(folder)


def test_a_damaged_store_is_said(folder: Path) -> None:
    artifact = store_folder(folder)
    (local_path(artifact) / "adapter_model.safetensors").unlink()
    with pytest.raises(ArtifactError, match="lacks adapter_model"):
        local_path(artifact)


def test_what_was_altered_is_not_read_whatever_its_size_and_time(folder: Path) -> None:
    artifact = store_folder(folder)
    path = local_path(artifact) / "adapter_model.safetensors"
    before = path.stat()
    path.write_bytes(b"WEIGHTS")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ArtifactError, match="was altered"):
        local_path(artifact)
    assert store_folder(folder) == artifact and local_path(artifact).is_dir(), (
        "stored again, it is whole"
    )


def test_a_file_that_was_added_is_said(folder: Path) -> None:
    artifact = store_folder(folder)
    (local_path(artifact) / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ArtifactError, match="other files"):
        local_path(artifact)


def test_versions_are_numbered_and_made_once(data_dir: Path) -> None:
    project = make_project()
    base = make_base(project, data_dir)
    assert make_base(project, data_dir) == base
    one, two = make_adapter(project, base, data_dir), make_adapter(project, base, data_dir)
    assert [str(one), str(two)] == ["adapter-v1", "adapter-v2"]
    assert model_spec(two).adapter.endswith(two.artifact_id)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: (path / "model.safetensors").unlink(), "holds no safetensors"),
        (lambda path: (path / "config.json").unlink(), "has no config.json"),
        (lambda path: path.rename(path.with_name("away")), "is missing"),
    ],
)
def test_a_folder_that_is_no_model(data_dir: Path, spoil, sentence: str) -> None:
    project, path = make_project(), make_base_folder(data_dir / "m")
    spoil(path)
    with pytest.raises(ModelError, match=sentence):
        register_base(project=project, name="m", folder=path, by=admin_of(project))
