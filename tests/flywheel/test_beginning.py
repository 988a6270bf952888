"""Only what is meant to begin an installation does; what is refused leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flywheel import beginning, embedded, places
from flywheel.embedded import ServiceError
from tests.flywheel.machine import Machine

pytestmark = pytest.mark.slow
REFUSED = "There is no installation in"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("command", ["doctor", "backup", "createsuperuser", "import_trajectories"])
def test_a_command_refuses_where_there_is_no_installation(folder: Path, command: str) -> None:
    machine = Machine(folder / "data")
    done = machine.run("manage.py", command, str(folder / "target"))
    assert done.returncode == 1
    assert f"{REFUSED} {machine.data}." in done.stdout and "Traceback" not in done.stdout
    assert list(folder.iterdir()) == []


def test_a_copy_of_a_backup_is_verified_where_there_is_no_installation(folder: Path) -> None:
    done = Machine(folder / "data").run("manage.py", "backup", "--verify", str(folder / "copy"))
    assert done.returncode == 1 and "copy" in done.stdout
    assert REFUSED not in done.stdout and "Traceback" not in done.stdout
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", [["help"], ["migrate", "--help"], ["routes"]])
def test_a_command_that_needs_no_installation_begins_none(folder: Path, command: list[str]) -> None:
    done = Machine(folder / "data").run("manage.py", *command)
    assert done.returncode == 0, done.stdout
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["web", "default"])
def test_a_process_refuses_where_there_is_no_installation(folder: Path, name: str) -> None:
    machine = Machine(folder / "data")
    done = machine.run("-m", "flywheel.processes", name)
    assert done.returncode == 1
    assert f"{REFUSED} {machine.data}." in done.stdout and "Traceback" not in done.stdout
    assert list(folder.iterdir()) == []


def test_where_no_folder_is_named_the_default_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("FLYWHEEL_DATA_DIR", "DATABASE_URL", "BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "CODE", tmp_path)
    with pytest.raises(ServiceError, match=f"{tmp_path}/var .FLYWHEEL_DATA_DIR is not set."):
        beginning.require_installation("doctor")
    with pytest.raises(ServiceError, match="Name an empty folder with FLYWHEEL_DATA_DIR"):
        beginning.require_installation("restore")
    for command in ("up", "demo", "prepare", "migrate"):
        beginning.require_installation(command)
    monkeypatch.setenv("DATABASE_URL", "postgres://db.example.com/flywheel")
    beginning.require_installation("restore")
    with pytest.raises(ServiceError, match=REFUSED):
        beginning.require_installation("doctor")  # its broker would be a new one
    monkeypatch.setenv("BROKER_URL", "redis://broker.example.com")
    beginning.require_installation("doctor")


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every folder")
def test_a_folder_of_somebody_else_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLYWHEEL_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "data").mkdir(mode=0o000)
    with pytest.raises(ServiceError, match="cannot be read: Permission denied"):
        beginning.exists()


def test_a_refused_restore_leaves_nothing(folder: Path) -> None:
    machine = Machine(folder / "data")
    home = embedded.Layout.of(machine.data).home
    done = machine.run("manage.py", "restore", str(folder / "no backup"))
    assert done.returncode == 1 and "no backup" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
    assert list(folder.iterdir()) == [] and not (home.exists() and home != machine.data)
    machine.data.mkdir()  # as a volume that is mounted
    assert machine.run("manage.py", "restore", str(folder / "no backup")).returncode == 1
    assert list(machine.data.iterdir()) == []


def test_a_refused_restore_leaves_what_was_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLYWHEEL_DATA_DIR", str(tmp_path))
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(SystemExit), beginning.removed_if_failed():
        raise SystemExit(1)
    assert (tmp_path / "kept").read_text() == "mine"
    shutil.rmtree(tmp_path)
    with pytest.raises(SystemExit), beginning.removed_if_failed():
        tmp_path.mkdir()
        raise SystemExit(0)
    assert tmp_path.exists()
