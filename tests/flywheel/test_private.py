"""Nobody else on the machine reads what Flywheel writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flywheel import private
from flywheel.embedded import Layout
from tests.flywheel.machine import Machine


def open_to_others(data: Path) -> set[str]:
    """What others may read, write or list: all of a data folder that does not keep them out, but
    for static files, which everybody is sent.
    """
    found = set()
    for path in (data, *data.rglob("*")):
        if path.is_symlink() or path.is_socket() or data / "static" in path.parents:
            continue
        allowed = 0o711 if path == data and os.getuid() == 0 else 0o700
        if path.exists() and path.stat().st_mode & 0o777 & ~allowed:
            found.add(f"{path.relative_to(data)} {path.stat().st_mode & 0o777:o}")
    return {name for name in found if not name.startswith("pginstall")}


@pytest.mark.slow
def test_a_new_installation_is_for_its_user_alone(folder: Path) -> None:
    machine = Machine(folder / "above" / "data")
    old = os.umask(0o022)
    try:
        machine.user()
        layout = Layout.of(machine.data)
        assert layout.home == machine.data, "its PostgreSQL can enter"
        assert (folder / "above").stat().st_mode & 0o777 == 0o755
        assert (machine.data / "logs" / "postgres.log").exists() and layout.postgres.exists()
        assert open_to_others(machine.data) == set()
    finally:
        os.umask(old)
        machine.kill_everything()


def test_an_older_one_is_closed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("logs", "pginstall-18.6", "of somebody"):
        (data / name).mkdir(parents=True)
        (data / name).chmod(0o755)
    data.chmod(0o755)
    private.make_data_folder(data)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (data, *data.iterdir())}
    assert modes == {
        "data": 0o751 if os.getuid() == 0 else 0o750,
        "logs": 0o750,
        "pginstall-18.6": 0o755,
        "of somebody": 0o755,
    }
    data.chmod(0o700)
    private.make_data_folder(data)
    assert data.stat().st_mode & 0o777 == 0o700, "root's PostgreSQL stays where it is"
    data.chmod(0o1777)
    private.make_data_folder(data)
    assert data.stat().st_mode & 0o7777 == 0o1777, "shared, as /tmp"


def test_processes_and_what_they_start_write_for_their_user(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        private.restrict_umask()
        (tmp_path / "file").write_text("x")
        (tmp_path / "folder").mkdir()
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"file": 0o600, "folder": 0o700}
