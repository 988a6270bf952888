"""Folders of files that are whole: each file is verified, and a folder appears complete or not at
all.

A file is described by its entry: {path, size, sha256}.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath

from apps.core.stores import NoAnswer, StoreError, store
from workers.lib.folder_digest import sha256_of

SPARE = 64 * 2**20  # bytes that a fetch leaves free on the disk
TRIES = 3  # attempts to read a file from a store whose connection breaks


def problem_of(home: Path, files: list[dict]) -> str:
    """What is wrong with a folder; "" if it is intact. An unchanged gigabyte is not hashed again in
    this process.
    """
    for entry in files:
        if problem := differs(home, entry):
            return problem
    if sum(not path.is_dir() for path in home.rglob("*")) != len(files):
        return "was altered (it holds other files)"
    return ""


def differs(home: Path, entry: dict) -> str:
    path = home / entry["path"]
    if not path.is_file() or path.is_symlink():
        return f"lacks {entry['path']}"
    stat = path.stat()
    same = stat.st_size == entry["size"]
    same = (
        same
        and _hash(str(path), stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) == entry["sha256"]
    )
    return "" if same else f"was altered ({entry['path']})"


@lru_cache(maxsize=4096)
def _hash(path: str, *changed: int) -> str:
    """Cached by ctime, which any write changes, even one that resets the modification time."""
    return sha256_of(Path(path))


def require_space(home: Path, size: int) -> None:
    """Raises OSError if the disk has too little for `size` bytes."""
    free = shutil.disk_usage(home.parent).free
    if free < size + SPARE:
        raise OSError(
            f"{size / 2**20:,.0f} MiB are needed and {free / 2**20:,.0f} MiB are free on the disk"
        )


def fetch_file(name: str, entry: dict, folder: Path) -> None:
    """The file `name` of the store into a folder. Raises OSError."""
    for tried in range(1, TRIES + 1):
        try:
            write(folder, entry, store().chunks(name))
        except StoreError as error:
            if tried == TRIES or isinstance(error, NoAnswer):
                raise
        else:
            break


def write(folder: Path, entry: dict, chunks: Iterator[bytes]) -> None:
    """One file of an artifact, verified and synced. Raises OSError."""
    target = folder.joinpath(*_inside(entry["path"]).parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        for data in verified(entry, chunks):
            file.write(data)
    sync(target)


def verified(entry: dict, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Pass on the chunks. Raises OSError if they differ from what was stored, without reading more
    bytes than there should be.
    """
    digest, size = hashlib.sha256(), 0
    for data in chunks:
        digest.update(data)
        size += len(data)
        if size > entry["size"]:
            break
        yield data
    if (size, digest.hexdigest()) != (entry["size"], entry["sha256"]):
        raise OSError(
            f"{entry['path']} is not what was stored: it was altered or cut off. Restore it from a"
            " backup"
        )


def read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(2**20):
            yield data


def _inside(name: str) -> PurePosixPath:
    """Raises OSError for a name that leads out of its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name:
        raise OSError(f"{name!r} leads out of the artifact's folder")
    return path


@contextmanager
def beside(home: Path) -> Iterator[Path]:
    """A new folder that replaces `home` on success, and is removed on failure."""
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="incoming-", dir=home.parent))
    try:
        yield made
        if home.exists():  # the folder it replaces is damaged
            home.rename(made.with_name(f"{made.name}-old"))
        made.rename(home)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(made.with_name(f"{made.name}-old"), ignore_errors=True)


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Lock a folder for one thread of one process of this machine."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f".{home.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
