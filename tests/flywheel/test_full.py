"""A PostgreSQL of which all connections are used, as an operator finds it."""

from __future__ import annotations

import json
from contextlib import ExitStack

import psycopg
import pytest

from flywheel import servers
from flywheel.embedded import DATABASE, ROLE, Layout, ServiceError
from tests.flywheel.machine import Machine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("given", ["many", "-5", "19"])
def test_a_number_of_connections_that_makes_no_sense_is_said(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("FLYWHEEL_EMBEDDED_CONNECTIONS", given)
    with pytest.raises(ServiceError, match=f"must be a number from 20 on, and is '{given}'"):
        servers._connections()
    monkeypatch.setenv("FLYWHEEL_EMBEDDED_CONNECTIONS", "")
    assert servers._connections() == 120


def test_the_doctor_names_the_connections_when_none_is_left(machine: Machine) -> None:
    machine.environment["FLYWHEEL_EMBEDDED_CONNECTIONS"] = "20"
    machine.user()  # the servers run until it ends
    address = {"host": str(Layout.of(machine.data).run), "user": ROLE, "dbname": DATABASE}
    with ExitStack() as held:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            for _ in range(21):
                held.enter_context(psycopg.connect(**address))
        done = machine.run("manage.py", "doctor", "--json")
        text = machine.run("manage.py", "doctor").stdout
        refused = machine.run("manage.py", "backup", str(machine.data.parent / "backup"))
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert done.returncode == 1
    wrong = {one["condition"] for one in found["wrong"]}
    assert "connections" in wrong and "database" not in wrong
    assert found["installation"] == f"the data folder {machine.data}"
    assert text.count("UNKNOWN") == 1 and f"Installation: the data folder {machine.data}" in text
    assert refused.returncode == 1 and "too many clients" in refused.stdout
    assert "Traceback" not in refused.stdout
