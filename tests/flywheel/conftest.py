from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.embedded import UNPRIVILEGED, Layout
from tests.flywheel.machine import Machine


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everyone may pass through (pytest's own are for root alone), gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="flywheel-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    it = Machine(folder / "data")
    yield it
    it.kill_everything()
    home = Layout.of(it.data).home
    if home != it.data:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def unprivileged_uid() -> int | None:
    """An ordinary user: the one of PostgreSQL when the suite runs as root, else whoever runs it."""
    import pwd

    return pwd.getpwnam(UNPRIVILEGED).pw_uid if os.getuid() == 0 else None
