"""A running Flywheel, which stores what comes as its worker would, and a provider of models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.db import connections

from apps.trajectories import assembly, digest, traces
from tests.factories import make_key, make_project
from tests.sending.provider import provider
from tests.sending.snippets import User


@pytest.fixture
def server(live_server: Any, data_dir: Path) -> Iterator[str]:
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.1):
            traces.sort_some()
            assembly.step()
            digest.step()
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    yield live_server.url
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def openai_url() -> Iterator[str]:
    with provider() as url:
        yield url


@pytest.fixture
def user(server: str, openai_url: str, tmp_path: Path) -> User:
    return User(tmp_path, server, make_key(make_project()), openai_url)


@pytest.fixture
def api(user: User) -> Iterator[httpx2.Client]:
    base = f"{user.flywheel_url}/api/v1/trajectories/"
    headers = {"Authorization": f"Bearer {user.key}"}
    with httpx2.Client(base_url=base, headers=headers, timeout=300) as client:
        yield client
