"""Spools answers on disk until they are in the database. An answer is written here before its last
byte is sent, so no client waits for the database.

Each process of the endpoint appends to its own segment and hands it over about every second by
renaming it. A single reader stores the segments that were handed over, and those of dead processes.
A record consists of its length, its checksum, and msgpack; a record that was cut off by a kill is
always the last of its segment. Reading a segment twice is harmless, because it yields the same
spans.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from django.conf import settings
from msgspec import DecodeError, Struct, msgpack

from apps.core.backups.parts import CHUNK, File, Part, Parts, write_file
from apps.core.bus import on
from apps.trajectories.erasure.waiting import KeptFiles, Unstored
from workers.lib.prices import Price

log = logging.getLogger(__name__)
HEAD = struct.Struct("<II")  # length, CRC-32
OPEN, READY = ".open", ".ready"
LARGEST = 256 * 2**20  # maximum bytes of a record: a larger length is corrupt


class Record(Struct, kw_only=True, omit_defaults=True):
    """One answer. `request` is what was sent to the server, `answer` everything that it sent; times
    in ns since 1970.

    `ended` is one of: whole; left (the client disconnected); broken (the server ended it early);
    late (it sent nothing for too long); unreached (no server answered). `lane`, `trial`, `step`,
    `unit`: for an answer that counts in a trial. `shadow_of` is the span that a shadow's answer is
    compared with, which itself is `paired`. `served` is False if no client got it: then it is not
    production traffic.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    project: int
    key: str
    channel: str
    version: str
    version_id: int
    server: str = ""
    served_as: str = ""
    protocol: str = "chat"
    stream: bool = False
    session: str = ""
    user: str = ""
    metadata: dict[str, str] = {}
    request: bytes = b""
    answer: bytes = b""
    status: int = 0
    ended: str = "whole"
    problem: str = ""
    servers_tried: int = 1
    started_ns: int
    first_ns: int = 0
    ended_ns: int = 0
    price: Price | None = None
    lane: str = ""
    trial: str = ""
    step: int = 0
    unit: str = ""
    shadow_of: str = ""
    paired: bool = False
    served: bool = True


_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(Record).decode


class Writer:
    """One per process. `put` writes and returns immediately; `hand_over` passes the written records
    to the reader.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.file, self.path, self.unwritten = -1, folder, list[bytes]()

    def put(self, record: Record) -> None:
        """Write a record. If the disk is full, it is kept in memory and written with the next
        one.
        """
        data = _encode(record)
        self.unwritten.append(HEAD.pack(len(data), zlib.crc32(data)) + data)
        self.flush()

    def flush(self) -> None:
        try:
            if self.file < 0:
                self._open()
            while self.unwritten:
                self._append(self.unwritten[0])
                self.unwritten.pop(0)
        except OSError as error:
            log.error(
                "%d answers cannot be written to %s and stay in memory: %s",
                len(self.unwritten),
                self.folder,
                error,
            )

    def _open(self) -> None:
        # Locked before it gets its name, so that it is not mistaken for a dead process's segment
        new = self.folder / f"{uuid.uuid4().hex}.new"
        self.file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        self.path = new.rename(new.with_suffix(OPEN))

    def _append(self, data: bytes) -> None:
        """Append all of the data or none of it. Raises OSError."""
        before = os.fstat(self.file).st_size
        done = 0
        try:
            while done < len(data):
                done += os.write(self.file, data[done:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self.file, before)
            raise

    def hand_over(self) -> int:
        """Hand over the segment. Returns its file descriptor, to be synced and closed by `settle`,
        or -1 if nothing was written.
        """
        if self.unwritten:
            self.flush()
        if self.file < 0:
            return -1
        file, self.file = self.file, -1
        self.path.rename(self.path.with_suffix(READY))
        return file


def settle(file: int) -> None:
    """Sync a segment to disk and close it; may take long."""
    with contextlib.suppress(OSError):
        os.fdatasync(file)
    os.close(file)


def segments(folder: Path) -> list[Path]:
    """Segments to read, oldest first. Open segments of dead processes are handed over on their
    behalf.
    """
    for path in folder.glob(f"*{OPEN}"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.rename(path.with_suffix(READY))
            finally:
                os.close(file)
    found = []
    for path in folder.glob(f"*{READY}"):
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def waiting(folder: Path) -> tuple[int, float]:
    """Bytes that are not in the database yet, and the age of the oldest in seconds."""
    size, oldest = 0, time.time()
    for path in [*folder.glob(f"*{OPEN}"), *folder.glob(f"*{READY}")]:
        with contextlib.suppress(OSError):
            found = path.stat()
            if found.st_size:
                size, oldest = size + found.st_size, min(oldest, found.st_mtime)
    return size, max(0.0, time.time() - oldest)


@on(Parts)
def unstored_answers(question: Parts) -> Part:
    """Answers that the database does not have yet. Whoever restores them stores them again, which
    is harmless.
    """
    folder = Path(settings.FLYWHEEL_ENDPOINT_SPOOL)
    return Part("endpoint", lambda: _backed_up(folder), partial(_put, folder))


def _backed_up(folder: Path) -> Iterator[File]:
    """A listing misses a segment that is renamed meanwhile; the second does not, since each is
    renamed once. One that is gone is in the database.
    """
    names = {
        path.relative_to(folder).with_suffix(path.suffix.replace(OPEN, READY))
        for _ in range(2)
        for pattern in (f"*{OPEN}", f"*{READY}", "refused/*.msgpack")
        for path in folder.glob(pattern)
    }
    for name in sorted(names):
        yield File(name.as_posix(), _stamp(folder / name), partial(_segment, folder / name))


def _stamp(path: Path) -> str:
    for at in (path.with_suffix(OPEN), path):
        with contextlib.suppress(OSError):
            return str(at.stat().st_size)
    return ""


def _segment(path: Path) -> Iterator[bytes]:
    for at in (path.with_suffix(OPEN), path):
        with contextlib.suppress(FileNotFoundError):
            file = at.open("rb")
            break
    else:
        raise FileNotFoundError(f"{path.name} is stored")
    with file:
        yield from iter(partial(file.read, CHUNK), b"")


def _put(folder: Path, name: str, chunks: Iterator[bytes]) -> None:
    write_file(folder / name, chunks)


@on(KeptFiles)
def refused_answers(question: KeptFiles) -> list[Path]:
    """Answers of the project that the database has refused."""
    found = []
    for path in (Path(settings.FLYWHEEL_ENDPOINT_SPOOL) / "refused").glob("*.msgpack"):
        with contextlib.suppress(OSError, DecodeError):
            if _decode(path.read_bytes()).project == question.project.pk:
                found.append(path)
    return found


@on(Unstored)
def waiting_answers(question: Unstored) -> int:
    """Segments of this machine's endpoint that were written to before then."""
    before = question.before.timestamp()
    found = 0
    for path in segments(Path(settings.FLYWHEEL_ENDPOINT_SPOOL)):
        with contextlib.suppress(OSError):
            found += path.stat().st_mtime <= before
    return found


def read(path: Path) -> Iterator[Record]:
    """The records of a segment, up to where it is cut off or damaged."""
    with path.open("rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            size, checksum = HEAD.unpack(head)
            data = file.read(size) if size <= LARGEST else b""
            if len(data) != size or zlib.crc32(data) != checksum:
                log.warning("%s ends within a record", path.name)
                return
            try:
                yield _decode(data)
            except DecodeError as error:
                log.error("A record of %s cannot be read: %s", path.name, error)
