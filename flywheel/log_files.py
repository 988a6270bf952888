"""The files into which `up` writes what its parts say. One that has grown too large is renamed (.1,
.2, …), and the oldest goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flywheel import logs

MOST_BYTES = 20 * 2**20
KEPT = 4  # besides the one that is written


def rotate(path: Path, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
    """Before it is opened for a process that writes to it by itself."""
    with suppress(OSError):
        if path.stat().st_size < most_bytes:
            return
        for number in range(kept, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if newer.exists():
                newer.replace(older)


class LogFile:
    """Of one part, whose processes write to it by threads of this one. A disk that is full keeps
    nobody from working.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
        self._path, self._most, self._kept = path, most_bytes, kept
        self._turn = threading.Lock()
        self._file = path.open("ab")

    def write(self, line: bytes) -> None:
        with self._turn, suppress(OSError):
            self._file.write(line)
            self._file.flush()
            if self._file.tell() >= self._most:
                self._file.close()
                rotate(self._path, self._most, self._kept)
                self._file = self._path.open("ab")


def write_lines(
    output: int, file: LogFile, name: str, show: Callable[[bytes], None] = lambda _: None
) -> None:
    """Reads what a process writes until it ends, for its log and for `show`."""
    with open(output, "rb") as lines:
        for line in lines:
            file.write(logs.as_line(line, name))
            show(line)
