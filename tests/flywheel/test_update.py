"""An installation is updated to a later version while agents send: old processes work beside new
ones until they are replaced, and everything that was acknowledged is there once. And it goes back
to the version before, by the backup.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from flywheel.embedded import Layout
from flywheel.version import VERSION
from tests.flywheel.faults import KEY, Sender, all_are_stored_once
from tests.flywheel.machine import ROOT, Machine, eventually, free_port, health, up

pytestmark = [pytest.mark.slow, pytest.mark.proof]
LATER = "9.1.0"
PARTS = ("apps", "flywheel", "workers", "templates", "static", "docs/nemo-gym")
FILES = ("manage.py", "pyproject.toml", "flywheel_sdk.py")
MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("core", "0001_initial")]
    operations = [
        migrations.AddField("project", "region", models.CharField(max_length=9, db_default="eu")),
    ]
"""
MODEL = """
models.CharField(max_length=9, db_default="eu").contribute_to_class(Project, "region")
"""


def later_version(folder: Path) -> Path:
    """A checkout of a version that adds a column."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace(f'"{VERSION}"', f'"{LATER}"', 1))
    (folder / "apps/core/migrations/0002_region.py").write_text(MIGRATION)
    with (folder / "apps/core/models.py").open("a") as models:
        models.write(MODEL)
    return folder


def test_old_and_new_processes_work_side_by_side_during_an_update(
    machine: Machine, folder: Path
) -> None:
    machine.environment["FLYWHEEL_API_KEY"] = KEY
    later = Machine(machine.data, code=later_version(folder / "later"))
    later.started = machine.started
    old_port, new_port = free_port(), free_port()
    old = up(machine, old_port)
    old_senders = [Sender(f"http://127.0.0.1:{old_port}", number) for number in (1, 2)]
    new_senders = [Sender(f"http://127.0.0.1:{new_port}", number) for number in (3, 4)]

    def send_a_while(senders: list[Sender]) -> None:
        for sender in senders:
            before = len(sender.acknowledged)
            eventually(lambda sender=sender, before=before: len(sender.acknowledged) > before + 60)

    def wait_well(port: int, version: str) -> None:
        eventually(lambda: (health(port) or {}).get("healthy"))
        assert (health(port) or {})["version"] == version

    for sender in old_senders:
        sender.start()
    send_a_while(old_senders)
    refused = later.run("-m", "flywheel.processes", "web", "--port", str(new_port))
    assert refused.returncode and re.search(
        rf"earlier version.*this is Flywheel {LATER}.*lacks core\.0002_region.*manage\.py migrate",
        refused.stdout,
    )

    done = later.run("manage.py", "migrate")
    assert done.returncode == 0 and "core.0002_region... OK" in done.stdout, done.stdout
    wait_well(old_port, VERSION)
    send_a_while(old_senders)

    beside = later.popen("-m", "flywheel.processes", "web", "--port", str(new_port))
    wait_well(new_port, LATER)
    for sender in new_senders:
        sender.start()
    send_a_while(old_senders + new_senders)
    refused = machine.run("manage.py", "unlock", "admin")
    assert refused.returncode and re.search(
        rf"newer than this Flywheel {VERSION}: it has core\.0002_region \({LATER}\)", refused.stdout
    )

    for sender in old_senders + new_senders:
        sender.stopping.set()
        sender.join()
        assert nobody_was_refused(sender)
    for process in (old, beside):
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
        assert "Traceback" not in output, output
    replaced = up(later, old_port)
    wait_well(old_port, LATER)
    names = [name for sender in old_senders + new_senders for name in sender.acknowledged]
    assert max(Counter(names).values()) == 1
    all_are_stored_once(later, names)
    replaced.send_signal(signal.SIGTERM)
    assert replaced.wait(timeout=300) == 0


def nobody_was_refused(sender: Sender) -> bool:
    """A time-out says that the machine is slow; its request was sent again."""
    return not [why for why in sender.refused if why.isdigit()]


def test_an_update_is_taken_back_by_the_backup(machine: Machine, folder: Path) -> None:
    machine.environment["FLYWHEEL_API_KEY"] = KEY
    later = Machine(machine.data, code=later_version(folder / "later"))
    before = Machine(folder / "before")
    later.started = before.started = machine.started
    port, backup = free_port(), str(folder / "backup")
    process = up(machine, port)
    kept = send_some(port, 1)
    done = machine.run("manage.py", "backup", backup)
    assert done.returncode == 0, done.stdout
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    done = later.run("manage.py", "migrate")
    assert done.returncode == 0 and "core.0002_region... OK" in done.stdout, done.stdout

    done = before.run("manage.py", "restore", backup)
    assert done.returncode == 0, done.stdout
    process = up(before, port)
    try:
        assert (health(port) or {})["version"] == VERSION
        all_are_stored_once(before, kept + send_some(port, 2))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        before.kill_everything()
        home = Layout.of(before.data).home
        if home != before.data:
            shutil.rmtree(home, ignore_errors=True)


def send_some(port: int, number: int) -> list[str]:
    sender = Sender(f"http://127.0.0.1:{port}", number)
    sender.start()
    eventually(lambda: len(sender.acknowledged) > 60)
    sender.stopping.set()
    sender.join()
    assert nobody_was_refused(sender)
    return sender.acknowledged
