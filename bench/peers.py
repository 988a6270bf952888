"""The servers under test: how each is installed, started, asked and counted. `python -m
bench.peers` installs the peers.

Each peer lives in a virtual environment of its own below var/bench, each run has a database of its
own on the same disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg

from flywheel.embedded import Layout

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "var" / "bench"
PINS = {
    "phoenix": ["arize-phoenix==20.26.1", "asyncpg==0.32.0", "psycopg[binary]==3.3.9"],
    "mlflow": ["mlflow==3.17.2", "psycopg2-binary==2.9.13"],
    "inspect": ["inspect-ai==0.3.285", "openai==3.54.0"],
    "lm_eval": ["lm-eval[api]==0.4.13"],
}
# Nothing waits to be assembled, digested or classified, and the first pass has ended.
CLASSIFIED = (
    "SELECT NOT EXISTS (SELECT FROM trajectories_spanbody) AND NOT EXISTS (SELECT FROM"
    " trajectories_trace WHERE due_at IS NOT NULL) AND NOT EXISTS (SELECT FROM"
    " trajectories_arrival) AND NOT EXISTS (SELECT FROM failures_unclassified) AND EXISTS (SELECT"
    " FROM failures_classifier WHERE rules > 0)"
)
PROCESSES = 2
START_PATIENCE_S = 180.0
STOP_PATIENCE_S = 60.0
HOLD = (
    "import sys; from flywheel import embedded; embedded.ensure(); print('ready', flush=True);"
    " sys.stdin.read()"
)


class BenchError(Exception):
    """A server that does not do what the benchmark needs; the message says which and where to
    look.
    """


def install(name: str) -> None:
    """The peer's virtual environment, made once."""
    folder = HOME / name
    if not (folder / "installed").exists():
        print(f"Installing {', '.join(PINS[name])} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "-q", *PINS[name]], check=True
        )
        (folder / "installed").touch()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_released(folder: Path) -> None:
    """Until the embedded services of a data folder have stopped (some seconds after their last
    user).
    """
    if not (folder / "supervisor.lock").exists():
        return
    deadline = time.monotonic() + STOP_PATIENCE_S
    with (folder / "supervisor.lock").open() as file:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.2)


@dataclass
class Server:
    """One server, from a fresh folder on. `database` is sqlite or postgresql; a subclass says the
    rest.
    """

    database: str
    folder: Path
    keep: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen | None = None
    holder: subprocess.Popen | None = None
    name = version = ""
    processes = PROCESSES
    health = "/healthz"
    door = "/v1/traces"
    acknowledges = "after commit"
    driver = ""

    @property
    def headers(self) -> dict[str, str]:
        return {}

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def visible(self, trace: str) -> bool:
        """Whether the peer's own read API gives the trace (32 hex digits)."""
        raise NotImplementedError

    def stored(self) -> int:
        """Traces (or trajectories) in its database."""
        raise NotImplementedError

    def start(self) -> None:
        """Returns when it answers. Raises BenchError."""
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.database == "postgresql" and self.name != "flywheel":
            self.holder = hold_postgres(self.folder)
        clean = {
            k: v
            for k, v in os.environ.items()
            if k not in ("DATABASE_URL", "BROKER_URL", "PYTHONPATH")
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=ROOT if self.name == "flywheel" else self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=clean | self.environment(),
            )
        deadline = time.monotonic() + START_PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get(self.health)[0] == 200:
                    return
            time.sleep(0.3)
        raise BenchError(f"{self.name} on {self.database} does not start. Read {self.log}.")

    def stop(self) -> None:
        """Asks it to stop, then kills its own process group; removes its data unless they are
        kept.
        """
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(STOP_PATIENCE_S)
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.holder is not None:
            self.holder.communicate()
        wait_released(self.folder)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> Path:
        """Beside the folder, which does not outlive the run."""
        return self.folder.with_suffix(".log")

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        """Status and JSON (None where it is none)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(
                "GET", f"{path}?{urlencode(query)}" if query else path, headers=self.headers
            )
            answer = connection.getresponse()
            text = answer.read()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, None

    def connect(self) -> psycopg.Connection:
        """To its PostgreSQL."""
        host = str(Layout.of(self.folder.resolve()).run)
        return psycopg.connect(host=host, user="flywheel", dbname="flywheel", autocommit=True)

    def count(self, table: str, sqlite_file: str = "") -> int:
        query = f"SELECT count(*) FROM {table}"
        if self.database == "sqlite":
            uri = f"file:{self.folder / sqlite_file}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=60)) as connection:
                return connection.execute(query).fetchone()[0]
        with self.connect() as connection:
            return connection.execute(query).fetchone()[0]

    @property
    def sqlalchemy_url(self) -> str:
        return f"postgresql{self.driver}://flywheel@/flywheel?host={Layout.of(self.folder.resolve()).run}"


def hold_postgres(folder: Path) -> subprocess.Popen:
    """Flywheel's own embedded PostgreSQL, with its settings, for a peer: runs while the process
    lives.
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ
        | {
            "FLYWHEEL_DATA_DIR": str(folder),
            "DATABASE_URL": "",
            "BROKER_URL": "redis://not-used",
        },
    )
    assert holder.stdout is not None
    if holder.stdout.readline().strip() != b"ready":
        raise BenchError(f"PostgreSQL does not start. Read {folder / 'logs'}.")
    return holder


@dataclass
class Flywheel(Server):
    """`manage.py up`: two web processes, and the workers that it always has."""

    name, version = "flywheel", "working tree"

    def __post_init__(self) -> None:
        self.key = "fw_" + secrets.token_hex(20)
        if self.keep:
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = self.folder / "bench_key"
            if not kept.exists():
                kept.write_text(self.key)
            self.key = kept.read_text()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def command(self) -> list[str]:
        return [sys.executable, "manage.py", "up", "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        return {
            "FLYWHEEL_DATA_DIR": str(self.folder),
            "FLYWHEEL_API_KEY": self.key,
            "FLYWHEEL_ADMIN_PASSWORD": "bench-password",
        }

    def visible(self, trace: str) -> bool:
        """The bodies say the trace id as the conversation's id, so the run's session is it,
        whatever its own id.
        """
        status, page = self.get("/api/v1/trajectories/", session=trace, limit=1)
        return status == 200 and bool(page["results"])

    def stored(self) -> int:
        return self.count("trajectories_trajectory")

    def digested(self) -> bool:
        """Whether the words and counts of all that was stored are written."""
        return not self.count("trajectories_arrival")

    def classified(self) -> bool:
        """Whether the rules have gone through all that was sent."""
        with self.connect() as connection:
            return connection.execute(CLASSIFIED).fetchone()[0]

    def web_processes(self) -> list[int]:
        """The pids of the web server: of the processes that `up` forks, those with its title."""
        assert self.process is not None
        parents = dict(_parents())
        own = {pid for pid, parent in parents.items() if parent == self.process.pid}
        return [pid for pid, parent in parents.items() if parent in own and _title(pid) == "fw-web"]


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield int(path.parent.name), int(path.read_text().rsplit(")", 1)[1].split()[1])


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


class Phoenix(Server):
    """One process: Phoenix has no option for more. It answers when the spans are in its queue in
    memory.
    """

    name, version, processes = "phoenix", PINS["phoenix"][0].split("==")[1], 1
    acknowledges = "before it stores"

    def command(self) -> list[str]:
        return [str(HOME / "phoenix/bin/phoenix"), "serve"]

    def environment(self) -> dict[str, str]:
        url = {} if self.database == "sqlite" else {"PHOENIX_SQL_DATABASE_URL": self.sqlalchemy_url}
        return url | {
            "PHOENIX_WORKING_DIR": str(self.folder),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        }

    def visible(self, trace: str) -> bool:
        status, page = self.get("/v1/projects/default/spans", trace_id=trace, limit=1)
        return status == 200 and bool(page["data"])

    def stored(self) -> int:
        return self.count("traces", "phoenix.db")


class MLflow(Server):
    name, version = "mlflow", PINS["mlflow"][0].split("==")[1]
    health, driver = "/health", "+psycopg2"

    @property
    def headers(self) -> dict[str, str]:
        return {"x-mlflow-experiment-id": "0"}

    def command(self) -> list[str]:
        url = (
            f"sqlite:///{self.folder / 'mlflow.db'}"
            if self.database == "sqlite"
            else self.sqlalchemy_url
        )
        place = [
            "--backend-store-uri",
            url,
            "--artifacts-destination",
            str(self.folder / "artifacts"),
        ]
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", str(self.processes)]
        return [str(HOME / "mlflow/bin/mlflow"), "server", *place, *listen]

    def environment(self) -> dict[str, str]:
        return {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PATH": f"{HOME / 'mlflow/bin'}:{os.environ['PATH']}",
        }

    def visible(self, trace: str) -> bool:
        status, found = self.get("/api/3.0/mlflow/traces/get", trace_id=f"tr-{trace}")
        return status == 200 and bool(found)

    def stored(self) -> int:
        return self.count("trace_info", "mlflow.db")


SERVERS: dict[str, type[Server]] = {"flywheel": Flywheel, "phoenix": Phoenix, "mlflow": MLflow}


def stop_servers_on_sigterm() -> None:
    """SIGTERM leaves by the `finally` clauses, as Ctrl-C does: no server outlives the benchmark."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def machine() -> dict[str, Any]:
    """Where and on what the numbers were measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    dirty = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.strip() + ("+" if dirty else ""),
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "load_before": os.getloadavg()[0],
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    for peer in PINS:
        install(peer)
