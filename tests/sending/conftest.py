"""One running Flywheel and one provider of models for the whole folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from flywheel.embedded import Layout
from tests.flywheel.machine import Machine, free_port, up
from tests.sending.provider import provider
from tests.sending.snippets import User

KEY = "fw_test-key-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of `manage.py up` on a data folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="flywheel-test-"))
    folder.chmod(0o777)  # the database runs as another user
    machine = Machine(folder / "data", environment={"FLYWHEEL_API_KEY": KEY})
    port = free_port()
    try:
        up(machine, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        machine.kill_everything()
        if (home := Layout.of(machine.data).home) != machine.data:
            shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def openai_url() -> Iterator[str]:
    with provider() as url:
        yield url


@pytest.fixture
def user(server: str, openai_url: str, tmp_path: Path) -> User:
    return User(tmp_path, server, KEY, openai_url)


@pytest.fixture
def api(server: str) -> Iterator[httpx2.Client]:
    base, headers = f"{server}/api/v1/trajectories/", {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=base, headers=headers, timeout=300) as client:
        yield client
