"""A database of this version with rows in every table, as a dump that later versions are upgraded
from, and the digests of the migrations that made it.
"""

from __future__ import annotations

import json
import lzma
import subprocess
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.test import Client

from apps.core import schema
from apps.core.actions import bootstrap, create_api_key
from apps.core.models import Project
from apps.trajectories import digest
from apps.trajectories.models import Trajectory
from flywheel import embedded, servers
from flywheel.version import VERSION
from tests.factories import admin_of, row
from tests.release.filling import fill
from tests.test_access import make_world

FOLDER = Path(__file__).parent
LOCK = FOLDER / "migrations.json"
OWNER, PASSWORD = "owner", "correct horse battery"
KEY = "fw_a-key-of-the-fixture-0123456789"

# What the database's checks and partitions require beyond the kinds of the fields.
GIVEN: dict[str, dict[str, Any]] = {
    "evals.MeaningVerdict": {"one": "a" * 64, "two": "b" * 64},
    "trajectories.Step": {"trajectory_id": lambda: Trajectory.objects.latest("id").pk},
    "trajectories.SearchText": {
        "trajectory_id": lambda: Trajectory.objects.latest("id").pk,
        "words": "filled",
    },
}


def fill_everything(data: Path) -> Project:
    """A project of `OWNER` with the key `KEY`. Raises AssertionError if a table stays empty."""
    bootstrap()
    project = make_world(data)["project"]
    owner = admin_of(project)
    owner.username = OWNER
    owner.set_password(PASSWORD)
    owner.save()
    project.redaction_rules.update(pattern="secret-[0-9]+")
    create_api_key(project=project, name="of the fixture", by=owner, secret=KEY)
    send(project, "sent")
    digest.run()
    fill(GIVEN)
    return project


def send(project: Project, name: str) -> None:
    sent = Client().post(
        "/api/v1/trajectories/",
        row(name=name, call={"tool": "tickets.close", "args": {"id": 1234}}),
        content_type="application/json",
        HTTP_AUTHORIZATION=f"Bearer {KEY}",
    )
    assert sent.status_code == 201, sent.content


def dump(database: str) -> bytes:
    return lzma.compress(_postgres("pg_dump", "--no-owner", "--no-privileges", database))


def restore(dumped: bytes, database: str) -> None:
    _postgres("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, given=lzma.decompress(dumped))


def _postgres(program: str, *arguments: str, given: bytes = b"") -> bytes:
    layout = embedded.Layout.of(embedded.data_dir())
    binary = servers._postgres_binaries(layout) / program
    address = ["-h", str(layout.run), "-U", embedded.ROLE]
    done = subprocess.run([binary, *address, *arguments], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def migrations() -> dict[str, str]:
    """{app.name: digest} of our own."""
    return dict(sorted(schema._digests().items()))


def write() -> list[Path]:
    """Into this folder, for the release of this version."""
    fill_everything(settings.FLYWHEEL_DATA_DIR)
    path = FOLDER / f"{VERSION}.sql.xz"
    path.write_bytes(dump(connection.settings_dict["NAME"]))
    locked = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    LOCK.write_text(json.dumps(migrations() | locked, indent=2) + "\n")
    return [path, LOCK]
