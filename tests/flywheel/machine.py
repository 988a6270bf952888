"""Flywheel as someone runs it: `manage.py` in processes of its own, on a data folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx2

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = (
    "DATABASE_URL",
    "BROKER_URL",
    "SECRET_KEY",
    "FLYWHEEL_EMBEDDED_FSYNC",
    "FLYWHEEL_API_KEY",
)


T = TypeVar("T")


def eventually(ask: Callable[[], T], patience_s: float = 300.0) -> T:
    """The first true answer. Fails the test when none comes. Asks less often the longer it waits:
    to ask may take as much as what is waited for.
    """
    deadline, pause = time.monotonic() + patience_s, 0.05
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.5)
    return answer


def holds_in_the_end(check: Callable[[], None], patience_s: float = 300.0) -> None:
    """Calls the check until it fails no more (AssertionError, or LookupError for what is not there
    yet).
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return check()
        except (AssertionError, LookupError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.3)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ignore_ctrl_c() -> None:
    """As a shell does for what a script starts with `&`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass
class Machine:
    """Commands of a checkout on one data folder. `uid` runs them as that user, `environment` adds
    to theirs.
    """

    data: Path
    uid: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    executable: str = sys.executable
    code: Path = ROOT  # the checkout that is run
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        return (
            kept
            | {"FLYWHEEL_DATA_DIR": str(self.data), "FLYWHEEL_EMBEDDED_FSYNC": "off"}
            | self.environment
        )

    def use_python_of_all(self) -> bool:
        """Takes a Python that every user can read: this one, or a copy of it. False where the code
        cannot be read.
        """
        packages, home = Path(httpx2.__file__).parent.parent, Path(sys.base_prefix)
        if not (reachable(packages) and reachable(ROOT)):
            return False
        if not reachable(home / "lib"):
            copy, name = (
                self.data.parent / "python",
                f"python{sys.version_info[0]}.{sys.version_info[1]}",
            )
            left_out = shutil.ignore_patterns(
                "site-packages", "test", "config-*", "idlelib", "ensurepip"
            )
            shutil.copytree(home / "lib" / name, copy / "lib" / name, ignore=left_out)
            for library in (home / "lib").glob("libpython*.so*"):
                shutil.copy(library, copy / "lib")
            (copy / "bin").mkdir()
            self.executable = shutil.copy(home / "bin" / name, copy / "bin")
            self.environment |= {"PYTHONHOME": str(copy), "LD_LIBRARY_PATH": str(copy / "lib")}
            self.environment |= {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        return True

    def popen(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        identity = (
            {} if self.uid is None else {"user": self.uid, "group": self.uid, "extra_groups": []}
        )
        process = subprocess.Popen(
            [self.executable, *arguments],
            cwd=self.code,
            env=self.env(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=ignore_ctrl_c,
            **identity,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        process = self.popen(*arguments)
        output, _ = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, output)

    def python(self, program: str, timeout: float = 300.0, apps: bool = True) -> str:
        """What a program that uses the services prints; without `apps` it has the database and no
        models, and starts in a fifth of the time. Fails the test where it fails."""
        done = self.run("-c", f"{PREAMBLE if apps else PLAIN}\n{program}", timeout=timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout.strip()

    def user(self) -> subprocess.Popen[str]:
        """A process that uses the services until it is killed or its stdin is closed."""
        process = self.popen(
            "-c", f"{PLAIN}\nprint('ready', flush=True)\nsys.stdin.read()", stdin=subprocess.PIPE
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", line + process.stdout.read()
        return process

    def processes(self, what: str = "") -> list[int]:
        """The processes that have this data folder in their environment or command line, or write
        their errors to it, as jobs do (a fork has the first two of where it comes from), except
        this one. `what` is in their command line or title.
        """
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes() + (folder / "comm").read_bytes()
                if what.encode() not in command or int(folder.name) == os.getpid():
                    continue
                about = command + (folder / "environ").read_bytes()
            except OSError:
                continue
            with suppress(OSError):
                about += bytes((folder / "fd" / "2").readlink())
            if str(self.data).encode() in about:
                found.append(int(folder.name))
        return found

    def part(self, name: str) -> list[int]:
        """The processes of a part of `up`."""
        return self.processes(f"fw-{name}\n")

    def postmaster(self) -> int:
        found = self.processes("bin/postgres\0-D")
        eldest = [pid for pid in found if parent_of(pid) not in found]  # forks begin as it is
        assert len(eldest) == 1, found
        return eldest[0]

    def kill_everything(self) -> None:
        """The supervisor of the services first: it would stop them in order once their last user is
        gone.
        """
        for pid in (*self.processes("flywheel.servers"), *self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.started:
            process.wait(timeout=300)

    def is_quiet(self) -> bool:
        return not self.processes()


def parent_of(pid: int) -> int:
    """0 of one that is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def reachable(path: Path) -> bool:
    """Whether every user may pass through the folders that lead to it."""
    return all(parent.stat().st_mode & 0o001 for parent in path.parents)


SERVICES = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
from flywheel import embedded
embedded.ensure()
import django
from django.apps import apps
from django.db import connection
"""
PLAIN = SERVICES + "apps.populate([])\n"  # no models, whose import is most of what a start costs
PREAMBLE = SERVICES + "django.setup()\n"


def health(port: int) -> dict | None:
    """The answer of /healthz, whatever its status; None where nothing answers."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=30).json()
    except (httpx2.HTTPError, ValueError):
        return None


def up(machine: Machine, port: int) -> subprocess.Popen[str]:
    """`manage.py up`, once it says that it is up. Fails the test with its output where it ends
    before.
    """
    process = machine.popen("manage.py", "up", "--port", str(port))
    assert process.stdout is not None
    said = ""
    while "Flywheel is up" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    return process
