"""The same code on a PostgreSQL and a Redis of one's own: Debian's, where they are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flywheel.embedded import UNPRIVILEGED, Layout
from tests.flywheel.machine import Machine, eventually, free_port, health, up

POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
REDIS = shutil.which("redis-server") or shutil.which(
    "valkey-server", path="/usr/bin:/usr/local/bin"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (POSTGRES and REDIS),
        reason="no PostgreSQL and Redis are installed (apt: postgresql redis-server)",
    ),
]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def database_url(folder: Path) -> Iterator[str]:
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
def broker_url(folder: Path) -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen(
        [str(REDIS), "--port", str(port), "--save", "", "--dir", folder], stdout=subprocess.DEVNULL
    )
    eventually(lambda: listens(port))
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait(timeout=300)


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


def test_each_service_may_be_ones_own_alone(machine: Machine, broker_url: str) -> None:
    machine.environment["BROKER_URL"] = broker_url
    program = "from flywheel import alive\nprint(connection.cursor() and alive.missing(['x']))"
    assert machine.python(program, apps=False) == "['x']"
    assert Layout.of(machine.data).postgres.exists()
    assert not (machine.data / "valkey").exists()


def test_a_database_that_is_not_postgresql_is_refused(machine: Machine) -> None:
    machine.environment |= {
        "DATABASE_URL": "sqlite:///db.sqlite3",
        "BROKER_URL": "redis://127.0.0.1:1/0",
    }
    done = machine.run("manage.py", "migrate")
    assert done.returncode != 0
    assert "must name a PostgreSQL database" in done.stdout
