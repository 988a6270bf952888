from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from psycopg import sql

Elsewhere = Callable[[], AbstractContextManager[Path]]


@pytest.fixture
def installation(transactional_db: None, settings: Any, tmp_path: Path) -> Path:
    """The data folder of one whose rows are committed."""
    return live_in(settings, tmp_path / "first")


def live_in(settings: Any, folder: Path) -> Path:
    settings.FLYWHEEL_DATA_DIR = folder
    settings.FLYWHEEL_ENDPOINT_SPOOL = str(folder / "endpoint")
    settings.FLYWHEEL_ENVIRONMENTS_DIR = folder / "environments"
    settings.FLYWHEEL_MODEL_FOLDERS = [str(folder / "models")]
    folder.mkdir()
    return folder


@pytest.fixture
def elsewhere(installation: Path, settings: Any, tmp_path: Path) -> Elsewhere:
    """Another installation: an empty database and another data folder."""

    @contextmanager
    def moved() -> Iterator[Path]:
        before, name = connection.settings_dict["NAME"], "test_flywheel_elsewhere"
        _database("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        _database("CREATE DATABASE {}", name)
        _use(name)
        try:
            yield live_in(settings, tmp_path / "elsewhere")
        finally:
            _use(before)
            _database("DROP DATABASE {} WITH (FORCE)", name)

    return moved


def _use(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name


def _database(words: str, name: str) -> None:
    with connection._nodb_cursor() as cursor:
        cursor.execute(sql.SQL(words).format(sql.Identifier(name)))
