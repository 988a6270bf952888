"""A backup is made while everything goes on, and is whole or refused."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from apps.core.backups import database, making, places
from apps.core.backups.manifest import BackupError, verify
from apps.core.backups.places import place_at
from apps.core.backups.restoring import restore
from apps.core.locks import Lock, try_holding
from apps.core.models import Backup
from apps.registry.artifacts import local_path, store_folder
from apps.registry.models import Artifact
from apps.serving import storing
from apps.serving.spool import Writer
from apps.trajectories import assembly
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Trajectory, TrajectoryKey
from tests.core.backups.conftest import Elsewhere
from tests.factories import make_project, row
from tests.serving.test_storing import record


def in_thread(work: Callable[[], Any]) -> None:
    """By another connection, while this one is in a snapshot."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def adapter(folder: Path, name: str) -> Artifact:
    source = folder / f"source-{name}"
    source.mkdir(exist_ok=True)
    (source / "adapter_model.safetensors").write_bytes(name.encode())
    return store_folder(source)


def during(monkeypatch: pytest.MonkeyPatch, work: Callable[[str], None]) -> None:
    """Whenever the backup begins to write a file, this is done first, by somebody else."""
    write = places.Folder.write

    def written(self: places.Folder, name: str, chunks: Iterable[bytes]) -> None:
        in_thread(lambda: work(name))
        write(self, name, chunks)

    monkeypatch.setattr(places.Folder, "write", written)


def test_what_was_acknowledged_before_is_there_once_while_more_comes(
    installation: Path, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, sent = make_project(), list[str]()

    def send(_: str = "") -> None:
        names = [f"run-{len(sent) + number}" for number in range(5)]
        assert ingest(project=project, rows=[row(name) for name in names]).accepted == 5
        sent.extend(names)

    send()
    for name in ("one", "two"):
        adapter(tmp_path, name)
    acknowledged = list(sent)
    during(monkeypatch, send)
    making.make(str(tmp_path / "backup"))
    assert len(sent) >= len(acknowledged) + 20, "more came during the backup"
    with elsewhere():
        restore(str(tmp_path / "backup"))
        there = Counter(TrajectoryKey.objects.values_list("external_id", flat=True))
        assert set(acknowledged) <= there.keys() <= set(sent) and max(there.values()) == 1
        assert all(local_path(one).is_dir() for one in Artifact.objects.all())
        assert ingest(project=project, rows=[row("run-new"), row(sent[0])]).accepted == 1


def test_files_that_rows_of_the_snapshot_refer_to_are_in_it(
    installation: Path, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is stored after the files were listed; one is removed before the snapshot."""
    adapter(tmp_path, "first")
    gone = adapter(tmp_path, "gone")
    taken = database.snapshot

    def later() -> Any:
        def change() -> None:
            adapter(tmp_path, "late")
            Artifact.objects.filter(pk=gone.pk).delete()

        in_thread(change)
        return taken()

    monkeypatch.setattr(database, "snapshot", later)
    making.make(str(tmp_path / "backup"))
    with elsewhere():
        restore(str(tmp_path / "backup"))
        assert {local_path(one).is_dir() for one in Artifact.objects.all()} == {True}
        assert Artifact.objects.count() == 2


def test_a_file_removed_after_the_snapshot_was_taken_takes_another(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter(tmp_path, "first")
    taken, snapshots = database.snapshot, list[int]()

    def one_comes_and_goes() -> Any:
        snapshots.append(1)
        if len(snapshots) > 1:
            return taken()
        late: list[Artifact] = []
        in_thread(lambda: late.append(adapter(tmp_path, "late")))
        made = taken()

        class AndGoes:
            def __enter__(self) -> str:
                name = made.__enter__()
                in_thread(lambda: Artifact.objects.filter(pk=late[0].pk).delete())
                shutil.rmtree(installation / "artifacts" / late[0].pk)
                return name

            def __exit__(self, *error: Any) -> Any:
                return made.__exit__(*error)

        return AndGoes()

    monkeypatch.setattr(database, "snapshot", one_comes_and_goes)
    manifest = making.make(str(tmp_path / "backup"))
    assert (len(snapshots), manifest.lacks, manifest.tables["registry_artifact"]) == (2, [], 1)


def test_an_answer_that_no_database_has_yet_is_in_it_once(
    installation: Path, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, spool = make_project(), installation / "endpoint"
    before, after = Writer(spool), Writer(spool)
    before.put(record(project, ["Hi"], number=1))
    os.close(before.hand_over())
    after.put(record(project, ["Hello"], number=2))

    def store(name: str) -> None:
        if name.startswith("files/store"):  # after the spool, before the snapshot
            storing.run(spool, lambda: False)

    during(monkeypatch, store)
    adapter(tmp_path, "first")
    making.make(str(tmp_path / "backup"))
    os.close(after.file)
    with elsewhere() as data:
        restore(str(tmp_path / "backup"))
        storing.run(data / "endpoint", lambda: False)
        while assembly.step():
            pass
        assert Trajectory.objects.count() == 2
        assert not [*(data / "endpoint").glob("*.ready")]


@pytest.fixture
def backup(installation: Path, tmp_path: Path) -> Path:
    make_project()
    adapter(tmp_path, "first")
    making.make(str(tmp_path / "backup"))
    return tmp_path / "backup"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_a_damaged_backup_is_refused(backup: Path, elsewhere: Elsewhere, tmp_path: Path) -> None:
    names = [path.relative_to(backup) for path in backup.rglob("*") if path.is_file()]
    assert len(names) == 4, "database, keys, an artifact, manifest"
    for number, (name, damage) in enumerate(product(names, (flip, cut, Path.unlink))):
        copy = shutil.copytree(backup, tmp_path / f"damaged-{number}")
        damage(copy / name)
        with pytest.raises(CommandError, match=r"(damaged|no finished).*Use another backup"):
            call_command("backup", "--verify", str(copy))
    shutil.copytree(backup, tmp_path / "unfinished")
    (tmp_path / "unfinished/manifest.json").unlink()
    with elsewhere() as data:
        with pytest.raises(CommandError, match="no finished backup"):
            call_command("restore", str(tmp_path / "unfinished"))
        damage_of = {flip: "was altered", cut: r"bytes instead of", Path.unlink: "is missing"}
        for damage, sentence in damage_of.items():
            copy = shutil.copytree(backup, tmp_path / f"damaged-{damage.__name__}")
            damage(copy / "database.dump")
            with pytest.raises(CommandError, match=f"database.dump.*{sentence}"):
                call_command("restore", str(copy))
        assert not database.what_is_there() and not [*data.iterdir()]


def test_one_that_was_interrupted_is_refused(
    installation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_project()

    def ends(*_: Any) -> Any:
        yield b"half"
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "dumped", ends)
    adapter(tmp_path, "first")
    target = str(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        call_command("backup", target)
    with pytest.raises(BackupError, match="no finished backup"):
        verify(place_at(target), target)
    with pytest.raises(CommandError, match="not empty"):
        call_command("backup", target)
    assert {row.problem.split()[0] for row in Backup.objects.all()} == {"KeyboardInterrupt", target}


def test_only_its_owner_can_read_it(backup: Path, elsewhere: Elsewhere) -> None:
    assert {path.stat().st_mode & 0o077 for path in [backup, *backup.rglob("*")]} == {0}
    with elsewhere() as data:
        restore(str(backup))
        assert (data / "secret_key").stat().st_mode & 0o777 == 0o600


def test_another_secret_key_is_refused(
    backup: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "another")
    with elsewhere() as data:
        with pytest.raises(CommandError, match=r"not the one of the backup.*SECRET_KEY_FALLBACKS"):
            call_command("restore", str(backup))
        assert not database.what_is_there() and not [*data.iterdir()]


def test_an_older_server_is_refused(
    backup: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = database.server_version()
    monkeypatch.setattr(database, "server_version", lambda: version - 1)
    with elsewhere(), pytest.raises(CommandError, match=f"Restore it into PostgreSQL {version}"):
        call_command("restore", str(backup))


def test_a_database_with_something_in_it_is_left_alone(backup: Path) -> None:
    with pytest.raises(CommandError, match=r"not empty.*FLYWHEEL_DATA_DIR"):
        call_command("restore", str(backup))


def test_the_backup_of_a_later_version_is_refused(
    installation: Path, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO django_migrations VALUES (9999, 'core', '0002_later', now())")
    try:
        making.make(str(tmp_path / "backup"))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM django_migrations WHERE name = '0002_later'")
    with elsewhere():
        with pytest.raises(CommandError, match=r"core\.0002_later.*a later release"):
            call_command("restore", str(tmp_path / "backup"))
        assert not database.what_is_there()


def test_a_file_that_was_lost_before_is_said_and_the_rest_is_saved(
    installation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, other = adapter(tmp_path, "lost"), adapter(tmp_path, "other")
    (installation / "artifacts" / lost.pk / "adapter_model.safetensors").unlink()
    call_command("backup", str(tmp_path / "backup"))
    assert f"It lacks {lost.pk}/adapter_model.safetensors (store)" in capsys.readouterr().err
    assert (tmp_path / "backup/files/store" / other.pk / "adapter_model.safetensors").exists()
    assert Backup.objects.get().lacks == 1


def test_two_at_a_time_are_refused(installation: Path, tmp_path: Path) -> None:
    with try_holding(Lock.BACKUP):

        def second() -> None:
            call_command("backup", str(tmp_path / "backup"))

        with pytest.raises(CommandError, match="Another backup"):
            in_thread(second)
