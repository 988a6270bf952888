"""Backups in a bucket: an S3 server of this machine (moto's)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core.backups import making, schedule
from apps.core.backups.manifest import BackupError, verify
from apps.core.backups.places import place_at
from apps.core.backups.restoring import restore
from apps.core.buckets import Stream
from apps.core.models import Backup
from apps.registry.artifacts import local_path
from apps.registry.models import Artifact
from tests.core.backups.conftest import Elsewhere
from tests.core.backups.test_backup import adapter
from tests.factories import make_project
from tests.registry.s3 import BUCKET, KEYS, client_of, s3_server


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server() as address:
        for name, value in (KEYS | {"FLYWHEEL_S3_ENDPOINT": address}).items():
            monkeypatch.setenv(name, value)
        client = client_of(address)
        client.create_bucket(Bucket=BUCKET)
        yield client


def test_it_is_whole_there_or_refused(
    bucket: Any, installation: Path, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    project, kept = make_project(), adapter(tmp_path, "first")
    target = f"s3://{BUCKET}/backups/one"
    making.make(target)
    assert len(verify(place_at(target), target).files) == 3
    with pytest.raises(BackupError, match="not empty"):
        making.make(target)
    with elsewhere():
        restore(target)
        assert type(project).objects.get().slug == project.slug
        assert local_path(Artifact.objects.get(pk=kept.pk)).is_dir()
    bucket.put_object(Bucket=BUCKET, Key="backups/one/keys.json", Body=b"{}")
    with pytest.raises(BackupError, match=r"keys\.json has 2 bytes"):
        verify(place_at(target), target)


def test_the_schedule_keeps_the_newest(
    bucket: Any, installation: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FLYWHEEL_BACKUP_TARGET = f"s3://{BUCKET}/daily"
    settings.FLYWHEEL_BACKUP_KEEP = 1
    for key in ("daily/flywheel-20261101-030000/manifest.json", "other/manifest.json"):
        bucket.put_object(Bucket=BUCKET, Key=key, Body=b"")
    schedule.back_up()
    assert Backup.objects.get().problem == ""
    there = bucket.list_objects_v2(Bucket=BUCKET, Prefix="daily/")["Contents"]
    kept = Backup.objects.get().target.rpartition("/")[2]
    assert {one["Key"].split("/")[1] for one in there} == {kept}
    assert bucket.head_object(Bucket=BUCKET, Key="other/manifest.json")


def test_a_stream_is_read_in_any_size() -> None:
    stream = Stream(iter([b"abc", b"", b"defg"]))
    assert [stream.read(size) for size in (2, 3, 9, 9)] == [b"ab", b"cde", b"fg", b""]
