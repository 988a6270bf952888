"""The same code on a PostgreSQL and a Redis of one's own. Redis is Debian's, where it is installed;
PostgreSQL is Debian's in `make proof`, and the suite's own in the suite.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from flywheel.embedded import ROLE, UNPRIVILEGED, Layout, data_dir
from tests.amounts import amount
from tests.database import copy_migrated
from tests.flywheel.machine import Machine, eventually, free_port, health, up

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
REDIS = shutil.which("redis-server") or shutil.which(
    "valkey-server", path="/usr/bin:/usr/local/bin"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ((POSTGRES or amount(True, False)) and REDIS),
        reason="no PostgreSQL and Redis are installed (apt: postgresql redis-server)",
    ),
]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def migrated_database() -> Iterator[str]:
    """One of the suite's own PostgreSQL: what migrating another one costs is most of a start."""
    name = f"flywheel_external_{os.getpid()}"
    copy_migrated(connection.creation, name)
    yield f"postgres://{ROLE}@/{name}?host={Layout.of(data_dir()).run}"
    with connection.creation._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def empty_database(folder: Path) -> Iterator[str]:
    uid = pwd.getpwnam(UNPRIVILEGED).pw_uid if os.getuid() == 0 else os.getuid()
    port, data, bin_folder = free_port(), folder / "their-postgres", POSTGRES[-1]
    identity = {"user": uid} if os.getuid() == 0 else {}
    subprocess.run(
        [
            bin_folder / "initdb",
            "-D",
            data,
            "-U",
            "them",
            "--auth=trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
        **identity,
    )
    server = subprocess.Popen(
        [bin_folder / "postgres", "-D", data, "-k", folder, "-p", str(port), "-c", "fsync=off"],
        stderr=subprocess.DEVNULL,
        cwd="/",
        **identity,
    )
    eventually(lambda: listens(port))
    yield f"postgres://them@127.0.0.1:{port}/postgres"
    server.send_signal(signal.SIGINT)
    server.wait(timeout=300)


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest, folder: Path, django_db_blocker: Any
) -> Iterator[str]:
    request.getfixturevalue("django_db_setup")
    with django_db_blocker.unblock(), amount(migrated_database(), empty_database(folder)) as url:
        yield url


@pytest.fixture
def broker_url(folder: Path) -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen(
        [str(REDIS), "--port", str(port), "--save", "", "--dir", folder], stdout=subprocess.DEVNULL
    )
    eventually(lambda: listens(port))
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait(timeout=300)


def test_a_command_starts_no_services_where_both_are_ones_own(
    machine: Machine, database_url: str, broker_url: str
) -> None:
    machine.environment |= {"DATABASE_URL": database_url, "BROKER_URL": broker_url}
    program = """
from flywheel import alive
cursor = connection.cursor()
cursor.execute("SELECT count(*) FROM core_project")
print(cursor.fetchone(), alive.missing(["x"]))
"""
    assert machine.python(program, apps=False) == "(0,) ['x']"
    assert not Layout.of(machine.data).postgres.exists()
    assert machine.is_quiet()


@pytest.mark.proof
def test_all_is_up_on_services_of_ones_own(
    machine: Machine, database_url: str, broker_url: str
) -> None:
    machine.environment |= {"DATABASE_URL": database_url, "BROKER_URL": broker_url}
    port = free_port()
    process = up(machine, port)
    assert (health(port) or {})["healthy"]
    assert machine.processes("flywheel.servers") == []
    assert not Layout.of(machine.data).postgres.exists()

    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    eventually(machine.is_quiet)


@pytest.mark.proof
def test_each_service_may_be_ones_own_alone(machine: Machine, broker_url: str) -> None:
    machine.environment["BROKER_URL"] = broker_url
    program = "from flywheel import alive\nprint(connection.cursor() and alive.missing(['x']))"
    assert machine.python(program, apps=False) == "['x']"
    assert Layout.of(machine.data).postgres.exists()
    assert not (machine.data / "valkey").exists()


@pytest.mark.proof
def test_a_database_that_is_not_postgresql_is_refused(machine: Machine) -> None:
    machine.environment |= {
        "DATABASE_URL": "sqlite:///db.sqlite3",
        "BROKER_URL": "redis://127.0.0.1:1/0",
    }
    done = machine.run("manage.py", "migrate")
    assert done.returncode != 0
    assert "must name a PostgreSQL database" in done.stdout
