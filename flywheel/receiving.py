"""How busy the web processes of this machine are with what agents send. Each says it in a file of
the data folder: for background work, which rests meanwhile, and for the other web processes, since
the kernel spreads connections by chance, and those of one agent often all meet the same process.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flywheel.embedded import data_dir

WINDOW_S = 0.25
FRESH_S = 1.0  # what a process has said is no longer true then
BUSY = 0.5  # requests under way, on average: there are few breaks
UNEVEN = 1.5  # requests more than another process: one of them moves
MOST = 64  # processes
_LOCK = struct.Struct("hhqqi")  # struct flock
_SAID = struct.Struct("dd")  # when (`time.monotonic`), and the requests under way


class Receivers:
    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._began, self._worked_s = 0.0, 0.0
        self._file, self._place = -1, -1
        self._is_uneven = False

    def join(self) -> None:
        """Takes a place in the file, for as long as this process lives."""
        with suppress(OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._place = next((i for i in range(MOST) if self._take(i)), -1)
            self._say(0.0)

    def worked(self, since: float) -> bool:
        """A request that began then (`time.monotonic`) is done. Whether its connection had better
        be another process's.
        """
        now = time.monotonic()
        with self._lock:
            self._worked_s += now - since
            passed = now - self._began
            if passed >= WINDOW_S:
                under_way = self._worked_s / passed
                self._began, self._worked_s = now, 0.0
                self._say(under_way)
                self._is_uneven = under_way >= self._least_of_others() + UNEVEN
            moves, self._is_uneven = self._is_uneven, False
        return moves

    def are_busy(self) -> bool:
        with suppress(OSError):
            return any(under_way >= BUSY for _, under_way in self._said(self._path.read_bytes()))
        return False

    def _take(self, place: int) -> bool:
        """The kernel frees it when this process ends."""
        try:
            self._lock_of(fcntl.F_OFD_SETLK, place)
        except OSError:
            return False
        return True

    def _lives(self, place: int) -> bool:
        return _LOCK.unpack(self._lock_of(fcntl.F_OFD_GETLK, place))[0] != fcntl.F_UNLCK

    def _lock_of(self, command: int, place: int) -> bytes:
        """By file, not by process: no other open and close of the file frees it."""
        wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place * _SAID.size, 1, 0)
        return fcntl.fcntl(self._file, command, wanted)

    def _say(self, under_way: float) -> None:
        if self._place >= 0:
            said = _SAID.pack(time.monotonic(), under_way)
            with suppress(OSError):
                os.pwrite(self._file, said, self._place * _SAID.size)

    def _least_of_others(self) -> float:
        """Infinite where there are none."""
        with suppress(OSError):
            said = dict(self._said(os.pread(self._file, MOST * _SAID.size, 0)))
            others = [place for place in said if place != self._place and self._lives(place)]
            return min((said[place] for place in others), default=float("inf"))
        return float("inf")

    def _said(self, raw: bytes) -> Iterator[tuple[int, float]]:
        """The requests under way by place; none where a process has not said anything for long."""
        now = time.monotonic()
        whole = raw[: len(raw) // _SAID.size * _SAID.size]
        for place, (at, under_way) in enumerate(_SAID.iter_unpack(whole)):
            yield place, under_way if 0 <= now - at < FRESH_S else 0.0


class Processors:
    """How many processors of this machine have nothing to do, as the kernel counts it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._idle = root, 0.0
        self._at, self._ticks = 0.0, (0, 0)

    def idle(self) -> float:
        """On average since it was last asked, at least over WINDOW_S. None, as far as is known,
        where the system does not say, or limits what its processes may use.
        """
        now = time.monotonic()
        if now - self._at >= WINDOW_S:
            before, self._at, self._ticks = self._ticks, now, self._read()
            idle, all_ticks = (new - old for new, old in zip(self._ticks, before, strict=True))
            is_known = all(before) and all_ticks > 0
            self._idle = idle / all_ticks * (os.cpu_count() or 1) if is_known else 0.0
        return self._idle

    def _read(self) -> tuple[int, int]:
        """Ticks without work, and all, since the machine started."""
        with suppress(OSError, ValueError):
            limit = self._root / "sys/fs/cgroup/cpu.max"
            if limit.exists() and not limit.read_text().startswith("max"):
                return 0, 0
            line = (self._root / "proc/stat").read_text().partition("\n")[0]
            ticks = [int(ticks) for ticks in line.split()[1:9]]
            return ticks[3] + ticks[4], sum(ticks)  # idle, also those that wait for a disk
        return 0, 0


receivers = Receivers(data_dir() / "receiving")
processors = Processors()
