"""A restored installation, at another path and with other folders, works."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from apps.core.job_files import job_folder
from apps.core.kinds import kind_of
from apps.core.models import Backup, Worker
from apps.evals.models import EvalRun
from apps.promotion import actions
from apps.promotion.models import Channel
from apps.registry.engines import model_spec
from apps.registry.models import ModelVersion
from apps.trajectories import uploads
from apps.trajectories.models import Upload
from tests.core.backups.conftest import Elsewhere
from tests.factories import admin_of
from tests.promotion.made import Pair


@pytest.fixture
def pair(installation: Path, settings: Any, tmp_path: Path) -> Pair:
    made = Pair(installation / "models")
    Worker.objects.create(name="default@old", queue="default", host="old", pid=1)
    return made


def test_one_logs_in_evaluates_promotes_and_rolls_back(
    pair: Pair, installation: Path, elsewhere: Elsewhere, tmp_path: Path, client: Client
) -> None:
    pair.by.set_password("a long password")
    pair.by.save()
    waiting = uploads.keep([b"{}"])
    assert uploads.path_of(waiting).is_relative_to(installation)
    Upload.objects.create(project=pair.project, name="f", format="jsonl", file=waiting, size=2)
    report = pair.report()
    call_command("backup", "--models", str(tmp_path / "backup"))
    shutil.move(installation, tmp_path / "gone")
    with elsewhere() as data:
        call_command("restore", str(tmp_path / "backup"))
        assert client.login(username=pair.by.username, password="a long password")
        page = client.get(f"/p/{pair.project.slug}/")
        assert page.status_code == 200
        better = ModelVersion.objects.get(pk=pair.better.pk)
        run = EvalRun.objects.get(model_version=better)
        run.spec["engine"] = {"kind": "transformers"}
        job_folder(run).mkdir(parents=True)
        spec = kind_of(run).child_spec(run).model
        assert spec.base == str(data / "models/base") and Path(spec.base).is_dir()
        assert spec.adapter and Path(spec.adapter).is_relative_to(data)
        channel = Channel.objects.get(pk=pair.channel.pk)
        restored = type(report).objects.get(pk=report.pk)
        assert restored.verdict == "promote"
        actions.promote(
            report=restored, by=admin_of(pair.project), channel=channel, reason="better"
        )
        channel.refresh_from_db()
        assert channel.current == better
        actions.rollback(channel=channel, by=admin_of(pair.project), reason="worse")
        channel.refresh_from_db()
        assert channel.current == pair.base
        assert uploads.path_of(Upload.objects.get().file).read_bytes() == b"{}"
        assert not Worker.objects.exists()
        assert Backup.objects.get().problem == "It was interrupted."
        assert EvalRun.objects.count() == 2


def test_without_the_base_it_says_what_is_missing(
    pair: Pair,
    installation: Path,
    elsewhere: Elsewhere,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call_command("backup", str(tmp_path / "backup"))
    assert not (tmp_path / "backup/files/models").exists()
    shutil.move(installation, tmp_path / "gone")
    with elsewhere() as data:
        call_command("restore", str(tmp_path / "backup"))
        said = capsys.readouterr().out
        assert "The base model base-v1 is not on this machine. Copy its folder" in said
        shutil.move(tmp_path / "gone/models/base", data / "models/base")
        assert model_spec(ModelVersion.objects.get(pk=pair.base.pk)).base == str(
            data / "models/base"
        )
