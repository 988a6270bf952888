from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flywheel.embedded import UNPRIVILEGED, Layout
from tests.flywheel.machine import Machine


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="flywheel-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _machine(folder: Path) -> Iterator[Machine]:
    it = Machine(folder / "data")
    yield it
    it.kill_everything()
    home = Layout.of(it.data).home
    if home != it.data:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everyone may pass through (pytest's own are for root alone), gone
    afterwards.
    """
    with _folder() as path:
        yield path


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    with _machine(folder) as it:
        yield it


@pytest.fixture(scope="module")
def _one_machine() -> Iterator[Machine]:
    with _folder() as path, _machine(path) as it:
        yield it


@pytest.fixture
def one_machine(_one_machine: Machine) -> Iterator[Machine]:
    """One for a module: its first start fills the folder, which takes longest."""
    yield _one_machine
    _one_machine.kill_everything()


@pytest.fixture
def unprivileged_uid() -> int | None:
    """An ordinary user: the one of PostgreSQL when the suite runs as root, else whoever runs it."""
    import pwd

    return pwd.getpwnam(UNPRIVILEGED).pw_uid if os.getuid() == 0 else None
