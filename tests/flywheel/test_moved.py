"""An installation is backed up while agents send and ask, and goes on in another folder."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.flywheel.faults import KEY, Sender, all_are_stored_once
from tests.flywheel.machine import Machine, eventually, free_port, health, up

pytestmark = [pytest.mark.slow, pytest.mark.proof]
PASSWORD = "the first admin's password"


def stopped(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in output, output


def logs_in(port: int) -> bool:
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True) as client:
        page = client.get("/login/").text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token, page
        sent = {"login": "admin", "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
        return 'href="/operator/"' in client.post("/login/", data=sent).text


def test_what_was_acknowledged_before_a_backup_is_there_once_elsewhere(
    machine: Machine, folder: Path
) -> None:
    machine.environment |= {"FLYWHEEL_API_KEY": KEY, "FLYWHEEL_ADMIN_PASSWORD": PASSWORD}
    port, backup = free_port(), str(folder / "backup")
    first = up(machine, port)
    senders = [Sender(f"http://127.0.0.1:{port}", number) for number in (1, 2, 3)]

    def acknowledged() -> list[str]:
        return [name for sender in senders for name in list(sender.acknowledged)]

    for sender in senders:
        sender.start()
    eventually(lambda: len(acknowledged()) > 300)
    before = acknowledged()
    made = machine.run("manage.py", "backup", backup)
    assert made.returncode == 0 and "is made" in made.stdout, made.stdout
    assert len(acknowledged()) > len(before), "none came while it was made"
    for sender in senders:
        sender.stopping.set()
        sender.join()
        assert not sender.refused, sender.refused
    stopped(first)

    moved = Machine(folder / "moved", started=machine.started)
    try:
        done = moved.run("manage.py", "restore", backup)
        assert done.returncode == 0 and "Restored" in done.stdout, done.stdout
        second = up(moved, port)
        eventually(lambda: (health(port) or {}).get("healthy"))
        all_are_stored_once(moved, before)
        assert logs_in(port)
        again = Sender(f"http://127.0.0.1:{port}", 1)
        again.start()
        eventually(lambda: len(again.acknowledged) > 60)
        again.stopping.set()
        again.join()
        assert not again.refused, "its key still holds"
        refused = moved.run("manage.py", "restore", backup)
        assert refused.returncode and "The database is not empty" in refused.stdout
        stopped(second)
    finally:
        moved.kill_everything()
