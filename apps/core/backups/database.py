"""The database in a backup, by PostgreSQL's own programs: `pg_dump` reads it in one snapshot while
everything goes on, `pg_restore` writes it in one transaction.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psycopg
from django.db import connection, transaction
from psycopg import sql

from apps.core.backups.manifest import BackupError
from apps.core.backups.parts import CHUNK
from flywheel import embedded
from flywheel.postgres.direct import direct

OURS = "relnamespace = current_schema()::regnamespace"


@contextmanager
def snapshot() -> Iterator[str]:
    """What is read inside, here and by who is given its name, is the database of one moment."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        yield cursor.fetchone()[0]


def rows_by_table() -> dict[str, int]:
    """Exact numbers. Partitions are counted in their table."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT relname FROM pg_class WHERE {OURS} AND relkind IN ('r', 'p')"
            " AND NOT relispartition ORDER BY relname"
        )
        tables = {name: 0 for (name,) in cursor.fetchall()}
        for name in tables:
            cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))
            (tables[name],) = cursor.fetchone()
    return tables


def what_is_there() -> list[str]:
    """Tables, views and sequences of a database that should be empty."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT relname FROM pg_class WHERE {OURS} AND relkind IN ('r', 'p', 'v', 'm', 'S')"
            " AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e')"
            " ORDER BY relname"
        )
        return [name for (name,) in cursor.fetchall()]


def server_version() -> int:
    """The major one."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        return int(cursor.fetchone()[0]) // 10_000


def dumped(program: Path, snapshot_name: str) -> Iterator[bytes]:
    """Chunks of a compressed archive. Raises BackupError at their end if something went wrong."""
    command = [
        program,
        "--format=custom",
        "--compress=1",
        "--no-owner",
        "--no-privileges",
        f"--snapshot={snapshot_name}",
    ]
    with _running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while data := process.stdout.read(CHUNK):
            yield data


def restore_from(program: Path, chunks: Iterable[bytes]) -> None:
    """All of it or nothing. Raises BackupError."""
    command = [
        program,
        "--no-owner",
        "--no-privileges",
        "--exit-on-error",
        "--single-transaction",
    ]
    with _running(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # then it has ended, and says why
            for data in chunks:
                process.stdin.write(data)
            process.stdin.close()


@contextmanager
def _running(command: list[Any], **pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    address, environment = _address()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*command, f"--dbname={address}"], stderr=said, env=environment, **pipes
        )
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            for pipe in (process.stdout, process.stdin):
                if pipe is not None and not pipe.closed:
                    _close(pipe)
            status = process.wait()
        if status:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            reason = next(
                (line for line in lines if "error:" in line), (lines or ["no reason"])[-1]
            )
            raise BackupError(f"{Path(command[0]).name} failed: {reason}")


def _close(pipe: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        pipe.close()


def _address() -> tuple[str, dict[str, str]]:
    """Where the database is, without its password, which others could read in the list of
    processes.
    """
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = {
        name: value
        for name, value in direct().get_connection_params().items()
        if name in known and value not in (None, "")
    }
    password = given.pop("password", None)
    environment = dict(os.environ) | ({"PGPASSWORD": str(password)} if password else {})
    return psycopg.conninfo.make_conninfo(**given), environment


def program(name: str, least: int) -> tuple[Path, int]:
    """PostgreSQL's program, of the lowest major version that is at least this one. Raises
    BackupError.
    """
    versions = {}
    for path in _programs(name):
        if (version := _version(path)) >= least:
            versions.setdefault(version, path)
    if not versions:
        raise BackupError(
            f"No {name} of PostgreSQL {least} or later was found. Install the client programs of"
            f" PostgreSQL {least} (postgresql-client-{least}), or Flywheel's embedded PostgreSQL."
        )
    version = min(versions)
    return versions[version], version


def _programs(name: str) -> Iterator[Path]:
    for folder in embedded.program_folders():
        yield folder / name
    if found := shutil.which(name):
        yield Path(found)
    yield from Path("/usr/lib/postgresql").glob(f"*/bin/{name}")


def _version(path: Path) -> int:
    """0 where it does not run."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r"\) (\d+)", said.stdout)
    return int(found[1]) if found else 0
