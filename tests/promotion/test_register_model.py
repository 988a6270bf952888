from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from apps.promotion.actions import channel_of
from apps.registry.models import ModelVersion
from tests.factories import make_base_folder, make_project

pytestmark = pytest.mark.django_db


def test_a_folder_becomes_the_live_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project, folder = make_project(), make_base_folder(tmp_path / "Qwen 2.5")
    call_command("register_model", folder, "--live")
    version = ModelVersion.objects.get()
    assert (version.name, version.base) == ("qwen-25", str(folder)) and channel_of(
        project
    ).current == version
    assert "live in production" in capsys.readouterr().out
    call_command("register_model", folder)
    assert ModelVersion.objects.count() == 1


def test_what_is_wrong_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = make_project(), make_project()
    folder = make_base_folder(tmp_path / "base")
    with pytest.raises(CommandError, match=f"{first.slug}, {second.slug}"):
        call_command("register_model", folder)
    with pytest.raises(CommandError, match="is missing"):
        call_command("register_model", tmp_path / "none", project=first.slug)
    call_command("register_model", folder, project=first.slug, live=True)
    (folder / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(CommandError, match="Promote through the gate"):
        call_command("register_model", folder, project=first.slug, live=True)
    assert ModelVersion.objects.count() == 1
