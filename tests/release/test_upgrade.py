"""A database of each release, with rows in every table, is upgraded to today's code and used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test import Client
from django.urls import reverse

from apps.core import schema
from apps.dashboard.navigation import NAVIGATION
from apps.trajectories.models import Trajectory
from tests.database import copy_migrated
from tests.release.effects import apply_and_judge
from tests.release.filling import empty_models
from tests.release.making import (
    FOLDER,
    LOCK,
    OWNER,
    PASSWORD,
    dump,
    fill_everything,
    migrations,
    restore,
    send,
)

RELEASES = sorted(path.name.removesuffix(".sql.xz") for path in FOLDER.glob("*.sql.xz"))
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _all_hashers(settings: Any) -> None:
    hasher = PBKDF2PasswordHasher
    settings.PASSWORD_HASHERS = [f"{hasher.__module__}.{hasher.__qualname__}"]


@pytest.fixture
def _database(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[None]:
    """Databases beside the suite's own may be made and used."""
    request.getfixturevalue("django_db_setup")
    with django_db_blocker.unblock():
        yield


@contextmanager
def database(name: str) -> Iterator[str]:
    """An empty one, in which this process works meanwhile."""
    name = f"{name}_{os.getpid()}"
    creation = connection.creation
    with creation._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        cursor.execute(f"CREATE DATABASE {name}")
    connection.close()
    before, connection.settings_dict["NAME"] = connection.settings_dict["NAME"], name
    try:
        yield name
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
        with creation._nodb_cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def it_is_upgraded_and_used() -> None:
    """As somebody does after an update: log in, look at every section, send a run."""
    call_command("migrate", verbosity=0)
    assert schema.schema_state().kind == schema.Kind.CURRENT
    client = Client()
    answer = client.post(reverse("account_login"), {"login": OWNER, "password": PASSWORD})
    assert answer.status_code == 302 and client.session["_auth_user_id"]
    project = Trajectory.objects.latest("id").project
    for _, _, name, _ in NAVIGATION:
        assert client.get(reverse(name, args=[project.slug])).status_code == 200, name
    run = Trajectory.objects.latest("id")
    assert client.get(run.get_absolute_url()).status_code == 200
    send(project, "after the update")
    assert Trajectory.objects.latest("id") != run


@pytest.mark.proof
@pytest.mark.usefixtures("_database")
def test_every_table_is_filled_dumped_restored_and_used(data_dir: Path) -> None:
    with database("flywheel_filled") as name:
        connection.close()
        copy_migrated(connection.creation, name)
        fill_everything(data_dir)
        assert empty_models() == []
        dumped = dump(name)
    with database("flywheel_restored") as name:
        restore(dumped, name)
        it_is_upgraded_and_used()


@pytest.mark.usefixtures("_database")
@pytest.mark.parametrize("version", RELEASES)
def test_a_release_is_upgraded_and_used(version: str) -> None:
    with database("flywheel_upgraded") as name:
        restore((FOLDER / f"{version}.sql.xz").read_bytes(), name)
        it_is_upgraded_and_used()


@pytest.mark.usefixtures("_database")
def test_migrations_since_the_last_release_stop_nobody() -> None:
    if not RELEASES:
        pytest.skip("nothing is released yet")
    newest = max(RELEASES, key=lambda version: [int(part) for part in version.split(".")])
    with database("flywheel_judged") as name:
        restore((FOLDER / f"{newest}.sql.xz").read_bytes(), name)
        executor = MigrationExecutor(connection)
        state = executor._create_project_state(with_applied_migrations=True)
        for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes()):
            reasons = apply_and_judge(migration, state)
            ours = migration.__module__.startswith("apps.")
            assert not (ours and reasons), (f"{migration}: {reasons}", "See docs/upgrading.md")


def test_a_released_migration_never_changes() -> None:
    if not LOCK.exists():
        pytest.skip("nothing is released yet: `python -m tests.release` locks the migrations")
    locked, here = json.loads(LOCK.read_text()), migrations()
    changed = [name for name, digest in locked.items() if here.get(name) != digest]
    assert not changed, f"{changed} were released: add a migration instead (docs/upgrading.md)"
