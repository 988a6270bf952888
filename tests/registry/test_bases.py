"""Where base models are: found by their weights, wherever a row says that they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from apps.core.models import AuditEvent, Project
from apps.registry import bases
from apps.registry.actions import ModelError, register_base, register_prompt
from apps.registry.bases import base_folder
from apps.registry.engines import model_spec
from apps.registry.models import ModelVersion
from tests.factories import make_adapter, make_base_folder, make_project

pytestmark = pytest.mark.django_db


@pytest.fixture
def roots(settings: Any, data_dir: Path) -> Path:
    settings.FLYWHEEL_MODEL_FOLDERS = [str(data_dir / "models")]
    return data_dir / "models"


@pytest.fixture
def registered(project: Project, tmp_path: Path, roots: Path) -> ModelVersion:
    return registered_at(project, make_base_folder(tmp_path / "old" / "qwen"))


def registered_at(project: Project, folder: Path) -> ModelVersion:
    return register_base(project=project, name="qwen", folder=folder, by=None)


def move(version: ModelVersion, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    return Path(version.base).rename(to)


def test_a_folder_that_was_moved_into_a_root_is_found(
    registered: ModelVersion, roots: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(registered.project, registered, tmp_path)
    other = make_base_folder(roots / "a-other")
    (other / "model.safetensors").write_bytes(b"others")
    there = move(registered, roots / "of-us" / "renamed")
    assert base_folder(registered) == base_folder(adapter) == there
    assert model_spec(adapter).base == str(there)


def test_other_weights_at_the_old_path_are_not_taken_for_it(
    registered: ModelVersion, roots: Path, tmp_path: Path
) -> None:
    there = move(registered, roots / "qwen")
    (make_base_folder(Path(registered.base)) / "model.safetensors").write_bytes(b"others")
    assert base_folder(registered) == there
    there.rename(tmp_path / "away")
    with pytest.raises(ModelError, match="has other weights than qwen-v1"):
        base_folder(registered)


def test_what_to_do_is_said_where_it_is_missing(registered: ModelVersion, tmp_path: Path) -> None:
    move(registered, tmp_path / "away")
    with pytest.raises(ModelError, match=r"is missing, .*Copy it there.*register_model"):
        base_folder(registered)


def test_weights_are_hashed_once(
    registered: ModelVersion, roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = move(registered, roots / "qwen")
    assert base_folder(registered) == there
    monkeypatch.setattr(bases, "base_digest", lambda folder: pytest.fail("hashed again"))
    assert base_folder(registered) == there


def test_registering_it_from_another_folder_moves_it_and_all_on_it(
    registered: ModelVersion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, old = registered.project, registered.base
    adapter = make_adapter(project, registered, tmp_path)
    prompt = register_prompt(
        project=project, name="terse", on=adapter, prompt={"system_prompt": "Be terse."}, by=None
    )
    elsewhere = registered_at(make_project(), Path(old))
    new = move(registered, tmp_path / "new" / "qwen")
    call_command("register_model", new, project=project.slug)
    assert f"qwen-v1 has these weights; it moved from {old} to {new}" in capsys.readouterr().out
    for version in (registered, adapter, prompt, elsewhere):
        version.refresh_from_db()
        assert version.base == str(new)
    assert AuditEvent.objects.filter(action="model_version.moved").count() == 2
    call_command("register_model", new, project=project.slug)
    assert f"qwen-v1 is registered already from {new}" in capsys.readouterr().out


def test_what_was_found_is_read_again_only_when_it_has_changed(
    registered: ModelVersion, roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = move(registered, roots / "qwen")
    assert base_folder(registered) == there
    opened: list[str] = []
    read = Path.read_bytes
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda path: opened.append(path.name) or read(path),  # type: ignore[func-returns-value]
    )
    for _ in range(3):
        assert base_folder(registered) == there
    assert opened.count(bases.FILE) <= 1
    again = there.rename(roots / "again")
    assert base_folder(registered) == base_folder(registered) == again
