"""What an idle `manage.py up` takes: its processes, their memory, and the time to its first page.
`python -m bench.footprint --help`

Counted is every process of the data folder: those that `up` starts, the embedded services and their
supervisor. Memory is PSS (a shared page counts for each process by its share), so the column adds
up; USS is what would be free if the process ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0
SETTLE_S = 30.0  # at least so long, so that each schedule of beat has run
IDLE_CPU_S = 0.5  # of all processes in one second
TICKS = os.sysconf("SC_CLK_TCK")
SERVICES = {"postgres": "PostgreSQL", "valkey-server": "Valkey"}
IMPORTS = """
import os, resource, time
os.environ["DJANGO_SETTINGS_MODULE"] = "flywheel.settings"
begun = time.process_time()
import django
django.setup()
from django.urls import get_resolver
get_resolver().url_patterns
print(time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@dataclass
class Process:
    """One process; memory in MB, processor time in seconds since it began."""

    pid: int
    part: str  # Flywheel, PostgreSQL or Valkey
    command: str
    pss: float
    uss: float
    threads: int
    cpu_s: float  # with that of its children that have ended
    niceness: int


def processes(data: Path) -> list[Process]:
    """Those with this data folder in their environment or command line and all that they started,
    without this one. (Servers that set their title overwrite their environment.)"""
    parents, own = {}, {os.getpid()}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(folder.name)
            parents[pid] = int(_stat(folder)[1])
            about = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if str(data).encode() in about:
                own.add(pid)
    found = []
    for pid in parents:
        with contextlib.suppress(OSError):
            if pid != os.getpid() and own & _line(pid, parents):
                found.append(_process(Path(f"/proc/{pid}")))
    return sorted(found, key=lambda process: (process.part, -process.pss))


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and those that it comes from, up to this one."""
    line = set()
    while pid in parents and pid != os.getpid():
        line.add(pid)
        pid = parents[pid]
    return line


def _stat(folder: Path) -> list[str]:
    """What /proc/…/stat says behind the name."""
    return (folder / "stat").read_text().rsplit(")", 1)[1].split()


def _process(folder: Path) -> Process:
    words = (folder / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    fields = dict(re.findall(r"^(\w+): +(\d+)", (folder / "smaps_rollup").read_text(), re.M))
    kilobytes = {name: int(value) for name, value in fields.items()}
    stat = _stat(folder)
    return Process(
        pid=int(folder.name),
        part=SERVICES.get(_service(words[0]), "Flywheel"),
        command=f"{(folder / 'comm').read_text().strip():<15} {_shown(words)}",
        pss=kilobytes.get("Pss", 0) / 1024,
        uss=(kilobytes.get("Private_Clean", 0) + kilobytes.get("Private_Dirty", 0)) / 1024,
        threads=int(stat[17]),
        cpu_s=sum(map(int, stat[11:15])) / TICKS,
        niceness=int(stat[16]),
    )


def _service(program: str) -> str:
    """PostgreSQL's children call themselves `postgres: what they do`; Valkey adds its address."""
    return "postgres" if program.startswith("postgres:") else Path(program.split()[0]).name


def _shown(words: list[str]) -> str:
    if words[0].startswith("postgres:"):
        return " ".join(words).strip()
    kept = [Path(word).name if word.startswith("/") else word for word in words]
    return " ".join(kept)[:60]


def busy(data: Path, seconds: float = 1.0) -> float:
    """Processor seconds that all processes take in so many seconds."""
    before = sum(process.cpu_s for process in processes(data))
    time.sleep(seconds)
    return sum(process.cpu_s for process in processes(data)) - before


def wait_idle(data: Path) -> None:
    time.sleep(SETTLE_S)
    deadline = time.monotonic() + PATIENCE_S
    while busy(data) > IDLE_CPU_S and time.monotonic() < deadline:
        continue


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(data: Path, port: int) -> Iterator[float]:
    """`up` on the data folder; yields the seconds until its first page. Raises SystemExit with its
    log if it does not come up."""
    log = data / "up.log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "BROKER_URL")
    } | {"FLYWHEEL_DATA_DIR": str(data), "FLYWHEEL_ADMIN_PASSWORD": secrets.token_hex(12)}
    begun = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(port)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not _page(port):
            if process.poll() is not None or time.monotonic() - begun > PATIENCE_S:
                sys.exit(log.read_text())
            time.sleep(0.05)
        first_page_s = time.monotonic() - begun
        while b"Flywheel is up" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() - begun > PATIENCE_S:
                sys.exit(log.read_text())
            time.sleep(0.05)
        yield first_page_s
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)


def _page(port: int) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        address = f"http://127.0.0.1:{port}/"
        return httpx2.get(address, follow_redirects=True, timeout=30).status_code == 200
    return False


def imports() -> tuple[float, float]:
    """Processor seconds and MB of a process that has imported the apps and all routes."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], cwd=ROOT, check=True, capture_output=True, text=True
    )
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def show(rows: list[Process]) -> None:
    print(f"{'PSS MB':>7} {'USS MB':>7} {'threads':>7} {'CPU s':>6}  command")
    for row in rows:
        print(f"{row.pss:7.1f} {row.uss:7.1f} {row.threads:7} {row.cpu_s:6.1f}  {row.command}")
    for part in ("Flywheel", *SERVICES.values()):
        own = [row for row in rows if row.part == part]
        print(f"{part}: {len(own)} processes, {sum(row.pss for row in own):.0f} MB")
    print(f"All: {len(rows)} processes, {sum(row.pss for row in rows):.0f} MB (PSS)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--restart", action="store_true", help="measure the second start")
    given = parser.parse_args()
    seconds, megabytes = imports()
    print(f"Imports of one process: {seconds:.2f} s of a processor, {megabytes:.0f} MB")
    with tempfile.TemporaryDirectory(prefix="flywheel-footprint-") as folder:
        data, port = Path(folder), given.port or free_port()
        if given.restart:
            with running(data, port):
                pass
        with running(data, port) as first_page_s:
            wait_idle(data)
            rows = processes(data)
            load = os.getloadavg()[0]
    show(rows)
    kind = "second" if given.restart else "first"
    print(f"First page {first_page_s:.1f} s after the {kind} start; load of the machine {load:.1f}")
    report = ROOT / "var" / "bench" / "footprint.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(
        json.dumps(
            {
                "imports_cpu_s": seconds,
                "imports_mb": megabytes,
                "first_page_s": first_page_s,
                "load": load,
                "processes": [asdict(row) for row in rows],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
