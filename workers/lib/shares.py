"""Divides a program's tasks among processes of one machine without a GPU, since sampling from a
small model keeps little more than one core busy. The first process starts the others with the same
spec and reports their samples as its own; they end with it. Light: the standard library only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from workers.lib.errors import JobError
from workers.lib.gpus import has_gpu
from workers.lib.guard import end_with_parent
from workers.lib.memory import memory_limit
from workers.lib.warm import again

SHARE = "FLYWHEEL_SHARE"  # of a process that another one started: its number and their count
MOST = 2  # each has the whole model
GIB = 2**30
MOST_BYTES = GIB  # of a model's files
EACH_GIB = 2  # what a process that samples from it takes
READ_BYTES = 1 << 20
STOPPED = 128 + signal.SIGTERM  # as this process was, which says so itself


@dataclass
class Other:
    """A process that was started for a share, and what it has written of a line."""

    process: subprocess.Popen
    tail: bytes = b""
    ended: bool = False

    def end(self) -> None:
        """One that was killed ends the job as if this process had been: it is tried again."""
        self.ended, status = True, self.process.wait()
        if status < 0:
            sys.exit(128 - status)
        if status not in (0, STOPPED):
            raise JobError(f"A process of the job ended with status {status}.")


@dataclass
class Shares:
    """This process's share of the tasks, and the processes that have the others."""

    number: int = 0
    count: int = 1
    others: list[Other] = field(default_factory=list)

    def of(self, tasks: int) -> range:
        """The indices of this process's tasks."""
        return range(self.number, tasks, self.count)

    @property
    def threads(self) -> int:
        """Of this process; 0: as many as it likes."""
        return max(1, (os.cpu_count() or 1) // self.count) if self.count > 1 else 0

    def read(self, sample: Callable[[dict[str, Any]], None], wait_s: float = 0.0) -> bool:
        """Passes on the samples that the others have written; whether there may be more. Raises
        JobError if one failed."""
        with selectors.DefaultSelector() as ready:
            for other in self.others:
                if not other.ended:
                    ready.register(other.process.stdout, selectors.EVENT_READ, other)  # type: ignore[arg-type]
            for key, _ in ready.select(wait_s) if ready.get_map() else []:
                for event in self._events(key.data):
                    if event["type"] == "sample":
                        sample(event)
                    elif event["type"] == "error":
                        raise JobError(event["message"])
        return any(not other.ended for other in self.others)

    def read_all(self, sample: Callable[[dict[str, Any]], None], check: Callable[[], None]) -> None:
        """Until the others have ended. Raises JobError if one failed."""
        while self.read(sample, wait_s=0.2):
            check()
        check()

    def _events(self, other: Other) -> list[dict[str, Any]]:
        chunk = os.read(other.process.stdout.fileno(), READ_BYTES)  # type: ignore[union-attr]
        if not chunk:
            other.end()
        *lines, other.tail = (other.tail + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def fields_of(event: dict[str, Any]) -> dict[str, Any]:
    """What another process said in an event, to be said again in one's own."""
    return {name: event[name] for name in event.keys() - {"type", "seq", "at"}}


def divided(program: str, model: Path, tasks: int, copies: int = 1) -> Shares:
    """Starts `python -m PROGRAM` with this process's spec for each other share, which loads so many
    copies of the model. Everything is one share where there is `room` for one, for a large model,
    and with one task."""
    if share := os.environ.get(SHARE):
        number, count = map(int, share.split("/"))
        return Shares(number, count)
    size = _bytes(model)
    count = min(room(EACH_GIB + (copies - 1) * size / GIB), tasks)
    if count < 2 or size > MOST_BYTES:
        return Shares()
    return Shares(0, count, [Other(_start(program, f"{n}/{count}")) for n in range(1, count)])


def room(each_gib: float) -> int:
    """How many processes may divide a small model's work here, by cores (or OMP_NUM_THREADS) and
    by free memory; 1 with a GPU."""
    if has_gpu():
        return 1
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    free = int(memory_limit()["available"] / (each_gib * GIB))
    return max(1, min(MOST, threads, free))


def _start(program: str, share: str) -> subprocess.Popen:
    return again(
        [program, *sys.argv[1:]],
        stdout=subprocess.PIPE,
        env=os.environ | {SHARE: share, "FLYWHEEL_EVENTS_FD": ""},
        preexec_fn=partial(end_with_parent, signal.SIGKILL),
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
