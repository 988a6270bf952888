"""Several machines on this one: each has a network namespace with an address of its own on a
bridge, a host name, and a data folder and /tmp that no other sees. PostgreSQL, the broker and the
object store are on the bridge itself; nothing else is shared.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from moto.server import ThreadedMotoServer

from flywheel.embedded import UNPRIVILEGED, Layout, data_dir
from flywheel.servers import _postgres_binaries, _valkey_binary
from tests.conftest import BRIDGED
from tests.flywheel import pgbouncer
from tests.flywheel.machine import ROOT, eventually
from tests.registry.s3 import BUCKET, KEYS, client_of

HERE = "/srv"  # where each machine sees its own folder
POSTGRES_PORT, POOLER_PORT, BROKER_PORT = 5432, 6432, 6379
POOL = 12  # sessions of PostgreSQL for all processes
# What `ip netns exec` runs: its own /srv and /tmp, and its own name.
INITDB = "-U flywheel -A trust -E UTF8 -N --no-locale"
ENTER = """
set -e
mount --bind "$1" /srv
mount --bind "$1/tmp" /tmp
hostname "$2"
shift 2
exec "$@"
"""


def why_not() -> str:
    """Why this machine cannot hold others; "" if it can."""
    if os.getuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and iproute2"
    name = f"fw-try-{os.getpid()}"
    try:
        with _bridge(name):
            return ""
    except subprocess.CalledProcessError:
        return "bridges and network namespaces are not allowed here"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def _bridge(name: str) -> Iterator[None]:
    name = name[:15]
    ip("link", "add", name, "type", "bridge")
    try:
        yield
    finally:
        ip("link", "del", name)


@dataclass
class Node:
    """A machine. `started`: its processes of Flywheel, by name."""

    name: str
    address: str
    namespace: str
    cable: str  # its end at the bridge
    folder: Path
    environment: dict[str, str]
    started: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def popen(self, *arguments: str, **more: object) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if "FLYWHEEL" not in name}
        enter = ["unshare", "--mount", "--uts", "sh", "-c", ENTER, "sh", self.folder, self.name]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *enter, sys.executable, *arguments],
            cwd=ROOT,
            env=kept | self.environment,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **more,  # type: ignore[arg-type]
        )

    def run(self, *arguments: str, timeout: float = 900.0) -> str:
        """What the command says. Fails the test if it fails."""
        process = self.popen(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate(timeout=timeout)
        assert process.returncode == 0, said
        return said.strip()

    def python(self, program: str) -> str:
        begin = "import django; django.setup()\n"
        return self.run("-c", f"{begin}{program}").splitlines()[-1]

    def start(self, name: str) -> None:
        """A process of an installation (flywheel.processes)."""
        log = (self.folder / f"{name}.log").open("a")
        self.started[name] = self.popen(
            "-m", "flywheel.processes", name, stdout=log, stderr=subprocess.STDOUT
        )

    def pids(self) -> list[int]:
        said = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True
        ).stdout
        return [int(pid) for pid in said.split()]

    def signal(self, number: int) -> None:
        """To all of its processes."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def die(self) -> None:
        """As when its power goes: everything at once, and nobody is told."""
        self.cut()
        while self.pids():
            self.signal(signal.SIGKILL)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def cut(self) -> None:
        ip("link", "set", self.cable, "down")

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        self.cut()
        try:
            yield
        finally:
            ip("link", "set", self.cable, "up")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


class Cluster:
    def __init__(self) -> None:
        self.stack = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="flywheel-", dir="/var/tmp"))
        self.folder.chmod(0o755)  # PostgreSQL runs as another user
        self.number = os.getpid() % 200 + 10
        self.prefix = f"fw{os.getpid() % 100_000}"
        self.nodes: dict[str, Node] = {}
        self.is_pooled = False
        self.host = self.address(1)
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "flywheel.settings",
            "DATABASE_URL": f"postgres://flywheel@{self.host}:{POSTGRES_PORT}/postgres",
            "BROKER_URL": f"redis://{self.host}:{BROKER_PORT}/0",
            "SECRET_KEY": "of-all-machines-" + "x" * 40,
            "FLYWHEEL_ARTIFACTS": f"s3://{BUCKET}/all",
            "FLYWHEEL_DATA_DIR": f"{HERE}/data",
            "FLYWHEEL_ALLOW_PRIVATE_URLS": "1",
            "ALLOWED_HOSTS": "*",
            "PYTHONUNBUFFERED": "1",
            **KEYS,
        }

    def address(self, last: int) -> str:
        return f"{BRIDGED}{self.number}.{last}"

    def __enter__(self) -> Cluster:
        with self.stack:
            self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.stack.enter_context(_bridge(self.prefix))
            ip("addr", "add", f"{self.host}/24", "dev", self.prefix)
            ip("link", "set", self.prefix, "up")
            self.stack.callback(self._stop)
            self._start_postgres()
            self._start_pooler()
            self._start_broker()
            self._start_store()
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def node(self, name: str, **environment: str) -> Node:
        number = len(self.nodes) + 2
        namespace, cable = f"{self.prefix}-{name}", f"{self.prefix}v{number}"
        folder = self.folder / name
        for made in (folder, folder / "data", folder / "tmp", folder / "models"):
            made.mkdir()
        own = {
            "FLYWHEEL_MODEL_FOLDERS": f"{HERE}/models",
            "FLYWHEEL_SERVE_HOST": self.address(number),
        }
        node = Node(
            name,
            self.address(number),
            namespace,
            cable,
            folder,
            self.environment | own | environment,
        )
        ip("netns", "add", namespace)
        self.nodes[name] = node
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("link", "set", cable, "master", self.prefix, "up")
        ip("-n", namespace, "addr", "add", f"{node.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            ip("-n", namespace, "link", "set", link, "up")
        return node

    def _stop(self) -> None:
        for node in self.nodes.values():
            while node.pids():
                node.signal(signal.SIGKILL)
            for process in node.started.values():
                process.wait(60)
            ip("netns", "del", node.namespace)

    def _start_postgres(self) -> None:
        home, data = _postgres_binaries(Layout.of(data_dir())), self.folder / "postgres"
        uid = pwd.getpwnam(UNPRIVILEGED).pw_uid
        data.mkdir()
        os.chown(data, uid, -1)
        as_nobody = {"user": uid, "group": uid, "extra_groups": [], "cwd": "/"}
        subprocess.run(
            [home / "initdb", "-D", data, *INITDB.split()],
            check=True,
            capture_output=True,
            **as_nobody,  # type: ignore[arg-type]
        )
        with (data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {self.host}/24 trust\n")
        options = {
            "listen_addresses": self.host,
            "port": POSTGRES_PORT,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
        }
        given = [text for item in options.items() for text in ("-c", "{}={}".format(*item))]
        self._popen("postgres", [home / "postgres", "-D", data, *given], signal.SIGINT, as_nobody)
        eventually(self._has_database)

    def _has_database(self) -> bool:
        with suppress(psycopg.OperationalError):
            with psycopg.connect(self.environment["DATABASE_URL"]) as connection:
                connection.execute("SELECT 1")
            return True
        return False

    def _start_pooler(self) -> None:
        """All processes use PgBouncer, with few sessions for all of them, where it can be had."""
        if (program := pgbouncer.found(self.folder / "pgbouncer")) is None:
            return
        self.is_pooled = True
        self.environment["DATABASE_DIRECT_URL"] = self.environment["DATABASE_URL"]
        self.environment["DATABASE_URL"] = f"postgres://flywheel@{self.host}:{POOLER_PORT}/postgres"
        given = {"name": "postgres", "user": "flywheel", "size": POOL}
        at = {"host": self.host, "port": POSTGRES_PORT, "own_port": POOLER_PORT}
        path = self.folder / "pgbouncer.ini"
        path.write_text(pgbouncer.CONFIGURATION.format(**given, **at))
        command = [program[0], "-u", UNPRIVILEGED, path]
        how = {"cwd": "/", "env": os.environ | program[1]}
        self._popen("pgbouncer", command, signal.SIGTERM, how)
        eventually(self._has_database)

    def _start_broker(self) -> None:
        options = ["--port", str(BROKER_PORT), "--bind", self.host, "--save", ""]
        command = [_valkey_binary(), *options, "--protected-mode", "no"]
        self._popen("valkey", command, signal.SIGTERM, {"cwd": self.folder})

    def _start_store(self) -> None:
        server = ThreadedMotoServer(ip_address=self.host, port=0, verbose=False)
        server.start()
        self.stack.callback(server.stop)
        _, port = server.get_host_and_port()
        self.environment["FLYWHEEL_S3_ENDPOINT"] = f"http://{self.host}:{port}"
        client_of(self.environment["FLYWHEEL_S3_ENDPOINT"]).create_bucket(Bucket=BUCKET)

    def _popen(self, name: str, command: list, end_with: int, how: dict) -> None:
        log = (self.folder / f"{name}.log").open("a")
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, **how)

        def stop() -> None:
            process.send_signal(end_with)
            process.wait(60)

        self.stack.callback(stop)
