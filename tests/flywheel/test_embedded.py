"""The embedded services, driven as commands drive them. Each test has a data folder and servers of
its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from flywheel.embedded import UNPRIVILEGED, Layout
from tests.flywheel.machine import Machine, eventually

pytestmark = pytest.mark.slow
CREATE = 'connection.cursor().execute("CREATE TABLE kept (n int)")'
INSERT = """
with connection.cursor() as cursor:
    for n in range(100000):
        cursor.execute("INSERT INTO kept VALUES (%s)", [n])
        print(n, flush=True)
"""
READ = """
with connection.cursor() as cursor:
    cursor.execute("SELECT n FROM kept ORDER BY n")
    print([n for (n,) in cursor.fetchall()])
"""


@pytest.mark.proof
def test_a_second_command_uses_the_running_servers_and_they_stop_with_the_last(
    machine: Machine,
) -> None:
    first = machine.user()
    postgres = machine.postmaster()
    second = machine.user()
    assert machine.postmaster() == postgres
    first.kill()
    machine.python(CREATE, apps=False)
    assert machine.postmaster() == postgres
    second.communicate()
    eventually(machine.is_quiet)


def test_acknowledged_rows_and_queued_tasks_survive_a_kill_of_everything(machine: Machine) -> None:
    machine.environment["FLYWHEEL_EMBEDDED_FSYNC"] = "on"
    machine.python(CREATE, apps=False)
    machine.python("from flywheel import alive\nalive.client().rpush('queue', 'task')", apps=False)
    writer = machine.popen("-c", f"from tests.flywheel.machine import PLAIN\nexec(PLAIN)\n{INSERT}")
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(200)]
    machine.kill_everything()
    acknowledged += [int(line) for line in writer.stdout.read().splitlines() if line.isdigit()]
    eventually(machine.is_quiet)

    found = eval(machine.python(READ, apps=False))

    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1  # the last may be stored and not yet acknowledged
    queued = machine.python(
        "from flywheel import alive\nprint(alive.client().lrange('queue', 0, -1))", apps=False
    )
    assert queued == "[b'task']"


def test_a_killed_postgres_comes_back_for_those_who_use_it(machine: Machine) -> None:
    process = machine.popen(
        "-c",
        "from tests.flywheel.machine import PLAIN\nexec(PLAIN)\n"
        "from django.db import close_old_connections\n"
        "for line in sys.stdin:\n"
        "    close_old_connections()\n"
        "    try:\n"
        "        connection.cursor().execute('SELECT 1')\n"
        "        print('yes', flush=True)\n"
        "    except django.db.OperationalError:\n"
        "        print('no', flush=True)\n",
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None

    def works() -> bool:
        process.stdin.write("?\n")
        process.stdin.flush()
        return process.stdout.readline() == "yes\n"

    assert works()
    before = machine.postmaster()
    os.kill(before, signal.SIGKILL)
    # An old backend may still answer once: the new server is waited for first.
    eventually(lambda: set(machine.processes("bin/postgres\0-D")) - {before})
    eventually(works)


@pytest.mark.proof
def test_a_stale_pid_file_with_the_number_of_a_living_process_is_no_obstacle(
    machine: Machine,
) -> None:
    machine.user()  # else the servers may have stopped, and removed the file
    machine.python(CREATE, apps=False)
    machine.kill_everything()
    layout = Layout.of(machine.data)
    of_the_same_user = {"user": UNPRIVILEGED} if os.getuid() == 0 else {}
    bystander = subprocess.Popen(["sleep", "300"], cwd="/", **of_the_same_user)
    for path in (layout.postgres / "postmaster.pid", layout.run / ".s.PGSQL.5432.lock"):
        lines = path.read_text().splitlines()
        path.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")

    try:
        assert machine.python(READ, apps=False) == "[]"
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.proof
def test_it_runs_for_an_ordinary_user(folder: Path, unprivileged_uid: int | None) -> None:
    machine = Machine(folder / "data", uid=unprivileged_uid)
    if unprivileged_uid is not None and not machine.use_python_of_all():
        pytest.skip("the checkout lies where no other user can read it")
    try:
        machine.user()  # its servers run until then
        machine.python(CREATE, apps=False)
        owner = Path(f"/proc/{machine.postmaster()}").stat().st_uid
        assert owner == (os.getuid() if unprivileged_uid is None else unprivileged_uid)
        assert machine.python(READ, apps=False) == "[]"
    finally:
        machine.kill_everything()


@pytest.mark.proof
@pytest.mark.skipif(os.getuid() != 0, reason="only root's PostgreSQL runs as another user")
def test_root_may_keep_its_data_where_no_one_else_can_enter(folder: Path) -> None:
    folder.chmod(0o700)
    machine = Machine(folder / "data")
    layout = Layout.of(machine.data)
    try:
        machine.user()  # its servers run until then
        machine.python(CREATE, apps=False)
        assert layout.home.parent == Path("/var/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert Path(f"/proc/{machine.postmaster()}").stat().st_uid != 0
    finally:
        machine.kill_everything()
        shutil.rmtree(layout.home, ignore_errors=True)


@pytest.mark.proof
def test_a_long_data_folder_has_its_sockets_elsewhere(folder: Path) -> None:
    machine = Machine(folder / ("deep" * 15) / ("deep" * 15))
    layout = Layout.of(machine.data)
    try:
        machine.python(CREATE, apps=False)
        assert len(str(layout.broker_socket)) < 108
    finally:
        machine.kill_everything()
        shutil.rmtree(layout.run.parent, ignore_errors=True)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda layout: (layout.postgres / "PG_VERSION").write_text("12\n"), "is of PostgreSQL 12"),
        (
            lambda layout: (layout.postgres / "PG_VERSION").unlink(),
            "is not a PostgreSQL data folder",
        ),
        (
            lambda layout: (layout.postgres / "global/pg_control").unlink(),
            "postgres does not start",
        ),
    ],
    ids=["another version", "not a data folder", "corrupted"],
)
def test_a_broken_data_folder_is_said_in_a_sentence(
    machine: Machine, spoil: object, sentence: str
) -> None:
    machine.python(CREATE, apps=False)
    machine.kill_everything()
    spoil(Layout.of(machine.data))  # type: ignore[operator]

    done = machine.run("manage.py", "migrate")

    assert done.returncode != 0
    assert sentence in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.proof
def test_a_data_folder_that_is_a_file_is_said_in_a_sentence(folder: Path) -> None:
    (folder / "data").write_text("")
    done = Machine(folder / "data").run("manage.py", "migrate")
    assert done.returncode != 0
    assert "cannot be written" in done.stdout and "FLYWHEEL_DATA_DIR" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.proof
def test_a_full_disk_is_said_in_a_sentence(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    machine = Machine(folder / "data")
    program = (
        "import errno, pathlib, sys\n"
        "from flywheel import embedded\n"
        "def full(*_, **__): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "pathlib.Path.write_text = full\n"
        "try:\n    embedded.ensure()\n"
        "except embedded.ServiceError as error:\n    print(error)"
    )
    assert "No space left on device" in machine.run("-c", program).stdout


def test_a_stopped_broker_is_named_at_once_and_by_the_doctor(machine: Machine) -> None:
    machine.run("manage.py", "migrate")
    user = machine.user()
    pid = int(Layout.of(machine.data).broker_pid.read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        refused = machine.run("manage.py", "drain", "somewhere")
        said = machine.run("manage.py", "doctor")
    finally:
        os.kill(pid, signal.SIGCONT)
    for done in (refused, said):
        assert done.returncode == 1 and f"“kill -CONT {pid}” lets it go on." in done.stdout
    assert "The broker does not answer" in said.stdout and "conditions are well" in said.stdout
    user.kill()


def test_psql_is_that_of_the_embedded_database(machine: Machine) -> None:
    machine.python(CREATE, apps=False)
    done = machine.run("manage.py", "dbshell", "--", "-tc", "SELECT 'it is ' || current_database()")
    assert done.returncode == 0 and "it is flywheel" in done.stdout, done.stdout


COMMANDS = (["makemigrations", "--check"], ["collectstatic", "--noinput"], ["migrate", "--help"])


@pytest.mark.proof
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_need_no_services_start_none(machine: Machine, command: list[str]) -> None:
    done = machine.run("manage.py", *command)
    assert done.returncode == 0, done.stdout
    assert not Layout.of(machine.data).postgres.exists()
    assert machine.is_quiet()
