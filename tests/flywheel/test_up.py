"""`manage.py up`, as someone runs it. One installation for all of it: a first start migrates the
database, for 10 CPU s and more.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import httpx2
import pytest

from flywheel.processes import PARTS
from tests.factories import row
from tests.flywheel.faults import (
    KEY,
    what_was_acknowledged_is_there_once,
    what_was_answered_is_there_once,
)
from tests.flywheel.machine import Machine, eventually, free_port, health, up
from tests.flywheel.test_private import open_to_others

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: "
)
OF_A_PROCESS = re.compile(rf" *({'|'.join(PARTS)}) \| ")
pytestmark = pytest.mark.slow
HEALTHY = {
    "database",
    "schema",
    "broker",
    "worker default",
    "worker ingest",
    "worker judge",
    "worker eval",
    "worker train",
    "beat",
}


def healthy(port: int, process: subprocess.Popen[str]) -> Callable[[], bool]:
    def ask() -> bool:
        assert process.poll() is None, process.stdout and process.stdout.read()
        return bool((health(port) or {}).get("healthy"))

    return ask


def said_by_up(output: str) -> str:
    """Without the lines of the processes: celery's worker may end with a traceback where its broker
    goes (and is restarted).
    """
    return "\n".join(line for line in output.splitlines() if not OF_A_PROCESS.match(line))


def it_takes_bodies_without_a_length(port: int, key: str) -> None:
    """As exporters send that pack while they send: chunked, and the length is nowhere."""
    packed = gzip.compress(json.dumps(row(name="chunked")).encode())
    answer = httpx2.post(
        f"http://127.0.0.1:{port}/api/v1/trajectories/",
        content=iter([packed[:50], packed[50:]]),
        headers={
            "Authorization": f"Bearer {key}",
            "Content-Encoding": "gzip",
            "Content-Type": "application/json",
        },
        timeout=300,
    )
    assert answer.status_code == 201, answer.text


def its_static_files_are_packed_and_kept(port: int) -> None:
    """Names have a digest of their content: browsers need to ask for a file once. The collected
    file is as it was written.
    """
    root = f"http://127.0.0.1:{port}"
    page = httpx2.get(f"{root}/", follow_redirects=True, timeout=300).text
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert any(re.search(r"/app\.[0-9a-f]{12}\.css$", one) for one in addresses), addresses
    for address in addresses:
        answer = httpx2.get(root + address, headers={"Accept-Encoding": "gzip"}, timeout=300)
        kept = answer.headers["Cache-Control"]
        assert answer.status_code == 200 and "immutable" in kept and "max-age=315360000" in kept, (
            address,
            kept,
        )
        assert answer.headers.get("Content-Encoding") == "gzip" or len(answer.content) < 1000, (
            address
        )


def it_logs_what_was_asked(machine: Machine, port: int) -> None:
    """One line for each request, in each log time and level, nowhere a secret."""
    secret = "fw_unknown-key-of-somebody"
    headers = {"Authorization": f"Bearer {secret}"}
    address = f"http://127.0.0.1:{port}/api/v1/trajectories/?q={secret}"
    assert httpx2.get(address, headers=headers, timeout=300).status_code == 401
    httpx2.get(f"http://127.0.0.1:{port}/forged%0A2026-01-01T00:00:00.000Z%20INFO%20x", timeout=300)
    logs = {
        path.stem: path.read_text()
        for path in (machine.data / "logs").glob("*.log")
        if path.stem in PARTS
    }
    asked = re.compile(
        r'INFO flywheel\.access: 127\.0\.0\.1 "GET /api/v1/trajectories/" 401 \d+\.\d ms'
    )
    eventually(lambda: asked.search((machine.data / "logs" / "web.log").read_text()))
    for name, text in logs.items():
        wrong = [line for line in text.splitlines() if not LINE.match(line)]
        assert not wrong, (name, wrong[:5])
        assert secret not in text and "fw_test-key" not in text and "/healthz" not in text
    assert set(logs) == set(PARTS)


def test_it_serves_restarts_what_dies_and_leaves_nothing_after_ctrl_c(one_machine: Machine) -> None:
    machine = one_machine
    machine.environment |= {
        "FLYWHEEL_ADMIN_PASSWORD": "correct horse battery",
        "FLYWHEEL_API_KEY": KEY,
    }
    port = free_port()
    process = up(machine, port)
    assert set((health(port) or {})["parts"]) == HEALTHY
    assert (
        httpx2.get(f"http://127.0.0.1:{port}/", follow_redirects=True, timeout=300).status_code
        == 200
    )

    its_static_files_are_packed_and_kept(port)
    it_takes_bodies_without_a_length(port, KEY)

    it_logs_what_was_asked(machine, port)

    for folder, says in (
        (
            machine.data,
            f"already runs with the data folder {machine.data}: http://127.0.0.1:{port}",
        ),
        (machine.data.with_name("another"), f"Cannot listen on 127.0.0.1:{port}"),
    ):
        second = replace(machine, data=folder).run("manage.py", "up", "--port", str(port))
        assert second.returncode != 0 and says in second.stdout, second.stdout
        assert "Traceback" not in second.stdout
    assert open_to_others(machine.data) == set()

    before = machine.part("default")
    for pid in before:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(set(machine.part("default")) - set(before)) == len(before))
    eventually(healthy(port, process))

    supervisor = machine.processes("flywheel.servers")
    os.kill(supervisor[0], signal.SIGKILL)
    eventually(lambda: machine.processes("flywheel.servers") not in ([], supervisor))
    eventually(healthy(port, process))

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "Traceback" not in said_by_up(output)
    assert "correct horse battery" not in output
    assert not machine.processes("bin/postgres") and not machine.processes("valkey-server")
    eventually(machine.is_quiet)


@pytest.mark.proof
def test_what_was_acknowledged_is_there_once_and_nothing_is_left_after_a_kill(
    one_machine: Machine,
) -> None:
    one_machine.environment |= {"FLYWHEEL_API_KEY": KEY, "FLYWHEEL_ALLOW_PRIVATE_URLS": "1"}
    port = free_port()
    process = up(one_machine, port)
    what_was_acknowledged_is_there_once(one_machine, port)
    what_was_answered_is_there_once(one_machine)
    process.kill()
    eventually(one_machine.is_quiet)


WHILE_IT_STARTS = (
    ("fw-prepare", signal.SIGHUP),
    ("bin/postgres", signal.SIGTERM),
    ("fw-light", signal.SIGINT),
)


@pytest.mark.proof
@pytest.mark.parametrize(("begun", "number"), WHILE_IT_STARTS)
def test_a_signal_while_it_starts_stops_everything_and_is_quiet(
    one_machine: Machine, begun: str, number: signal.Signals
) -> None:
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
    process = one_machine.popen("manage.py", "up", "--port", str(free_port()))
    signal.signal(signal.SIGHUP, inherited)
    eventually(lambda: one_machine.processes(begun))
    process.send_signal(number)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "Traceback" not in output
    assert not one_machine.processes("bin/postgres") and not one_machine.processes("valkey-server")
    eventually(one_machine.is_quiet)


@pytest.mark.proof
def test_a_database_that_is_away_is_one_sentence(one_machine: Machine) -> None:
    one_machine.environment["DATABASE_URL"] = "postgres://flywheel@127.0.0.1:1/flywheel"
    process = one_machine.popen("manage.py", "up", "--port", str(free_port()))
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0 and "Check DATABASE_URL" in output
    assert "Traceback" not in output
