"""What the processes of an installation hold: memory, threads, files, sockets, connections."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from flywheel import alive
from tests.chaos.world import World

PARTS = ("up", "forks", "web", "endpoint", "storing", "default", "ingest", "judge", "light")
SERVICES = {"postgres": "bin/postgres", "valkey": "valkey-server"}
CLIENTS = """
SELECT coalesce(nullif(application_name, ''), 'unnamed'), count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' GROUP BY 1
"""


def processes(world: World) -> dict[str, list[int]]:
    """{part: its process ids}"""
    found = {part: world.machine.part(part) for part in PARTS if part != "up"}
    found["up"] = [world.machine.started[-1].pid]
    parent = world.machine.postmaster()
    found["postgres"] = [parent, *children(parent)]
    found["valkey"] = world.machine.processes(SERVICES["valkey"])
    return found


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def held(world: World) -> dict[str, Any]:
    """{what: how much}, and by kind under the names that end with `by kind`.

    `memory` of a part is what its processes have written (anonymous pages): unlike PSS it does not
    rise when forks cease to share a page. PSS is that of all processes together.
    """
    parts, peers = processes(world), peers_of_sockets()
    found: dict[str, Any] = {"processes": parts}
    whole = 0.0
    for part, pids in parts.items():
        sizes = [rollup(pid) for pid in pids]
        whole += sum(size.get("Pss", 0.0) for size in sizes)
        own = "Private_Dirty" if part in SERVICES else "Anonymous"
        found[f"{part}: memory, MiB"] = sum(size.get(own, 0.0) for size in sizes) / 1024
        if part in SERVICES:
            continue
        kinds = Counter(kind for pid in pids for kind in descriptors(pid, peers))
        found[f"{part}: files and sockets"] = kinds.total()
        found[f"{part}: threads"] = sum(map(threads, pids))
        found[f"{part}: files by kind"] = dict(kinds)
    found["memory of all (PSS), MiB"] = whole / 1024
    with world.it.connect() as connection:
        clients = dict(connection.execute(CLIENTS).fetchall())
        size = "SELECT pg_database_size(current_database())"
        found["database, MiB"] = connection.execute(size).fetchone()[0] / 2**20
        runs = "SELECT count(*) FROM trajectories_trajectory"
        found["runs"] = connection.execute(runs).fetchone()[0]
    found["connections of PostgreSQL"] = sum(clients.values()) - 1  # this one
    found["connections by kind"] = clients
    found["messages by kind"] = messages()
    found["temporary files"] = len(list(world.temporary.rglob("*")))
    return found


def messages() -> dict[str, int]:
    """{queue, or what the broker keeps of messages that are being worked on: how many}"""
    sizes = {b"list": "llen", b"hash": "hlen", b"zset": "zcard"}
    broker = alive.client()
    return {
        key.decode(errors="replace"): getattr(broker, size)(key)
        for key in broker.scan_iter()
        if (size := sizes.get(broker.type(key)))
    }


def rollup(pid: int) -> dict[str, float]:
    """KiB."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return {name: float(size) for name, size in re.findall(r"(?m)^(\w+): +(\d+) kB", text)}
    return {}


def threads(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    return 0


def descriptors(pid: int, peers: dict[str, str]) -> list[str]:
    """A kind of each: the service at a socket's other end, a file's name, "pipe" …"""
    found = []
    for link in _entries(Path(f"/proc/{pid}/fd")):
        with suppress(OSError):
            target = str(link.readlink())
            inode = re.fullmatch(r"socket:\[(\d+)\]", target)
            named = peers.get(inode[1], "socket") if inode else Path(target).name
            found.append(re.sub(r"\d{3,}|[0-9a-f]{32}", "", named))
    return found


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def peers_of_sockets() -> dict[str, str]:
    """{inode of a client's UNIX socket: the name of the server's}"""
    found = {}
    with suppress(OSError):
        done = subprocess.run(["ss", "-xan"], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            columns = line.split()
            if len(columns) >= 8 and columns[4].startswith(("/", "@")):
                found[columns[7]] = Path(columns[4]).name
    return found
