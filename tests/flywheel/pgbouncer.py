"""PgBouncer: that of this machine, or Debian's package, unpacked without being installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")
CONFIGURATION = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = {host}
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
"""


def found(folder: Path) -> tuple[str, dict[str, str]] | None:
    """(the program, the environment that it needs); None where it cannot be had."""
    if there := shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin"):
        return there, {}
    folder.mkdir()
    try:
        subprocess.run(
            ["apt-get", "download", *PACKAGES], cwd=folder, check=True, capture_output=True
        )
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    program = folder / "root/usr/sbin/pgbouncer"
    libraries = ":".join(map(str, (folder / "root/usr/lib").glob("*-linux-gnu")))
    return (str(program), {"LD_LIBRARY_PATH": libraries}) if program.exists() else None
