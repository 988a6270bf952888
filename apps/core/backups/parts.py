"""What a backup holds beside the database. Each app names its files in the module that keeps them:

@on(Parts)
def waiting_uploads(question: Parts) -> Part: ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

from apps.core.bus import Question

CHUNK = 2**20


class File(Struct, frozen=True):
    """`stamp` changes when the content does. `read` raises OSError if the file is gone or is not
    what was stored.
    """

    name: str
    stamp: str
    read: Callable[[], Iterator[bytes]]


class Part(Struct, frozen=True):
    """`is_referred`: rows refer to these files, so a backup without one of them is not whole.
    `is_base`: large, and can be had elsewhere, so it is included only on demand.
    """

    name: str
    files: Callable[[], Iterable[File]]
    write: Callable[[str, Iterator[bytes]], None]
    is_referred: bool = False
    is_base: bool = False


class Parts(Question[Part]):
    """The files that a backup holds."""


def of_folder(
    name: str,
    folder: Path,
    paths: Callable[[], Iterable[Path]] | None = None,
    *,
    is_referred: bool = False,
    is_base: bool = False,
) -> Part:
    """The files in a folder; `paths` where only some of them matter."""
    return Part(
        name,
        lambda: (_file(folder, path) for path in (paths() if paths else plain_files(folder))),
        lambda at, chunks: write_file(folder / at, chunks),
        is_referred,
        is_base,
    )


def plain_files(folder: Path) -> Iterator[Path]:
    """No links and no sockets. Files may come and go meanwhile."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def _file(folder: Path, path: Path) -> File:
    try:
        stat = path.stat()
        stamp = f"{stat.st_size}-{stat.st_mtime_ns}"
    except OSError:
        stamp = ""
    return File(path.relative_to(folder).as_posix(), stamp, lambda: read_file(path))


def read_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data


def write_file(path: Path, chunks: Iterable[bytes], *, is_synced: bool = True) -> None:
    """Complete or absent, and for this user only. Of two that write it at once, the last wins."""
    make_private(path.parent)
    beside = path.with_name(f".{uuid4().hex}.incoming")
    try:
        with open(beside, "xb", opener=private) as file:
            for data in chunks:
                file.write(data)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def make_private(folder: Path) -> None:
    """`mkdir(parents=True)` lets everybody into the folders above."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
