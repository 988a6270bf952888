"""Runs several processes that train one adapter: `python -m workers.lib.processes PROGRAM COUNT
SPEC` starts a program COUNT times, ends the processes together, and exits like the single process
of a job (docs/jobs.md). Light: the standard library only.

`accelerate launch` is not used: its agent starts each process in its own session, where a kill of
the job's process group does not reach it; it closes the pipe for the events; and it starts only one
process if there is no GPU. The environment variables that it sets are set here, so that accelerate
works as usual in the programs; `accelerate launch -m workers.grpo spec.json` works by hand.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from workers.lib.guard import end_with_parent
from workers.lib.warm import again

LOST = 76  # exit status of a process that ended because another one did
# seconds that the others have to end by themselves after one has failed, before they are asked to
END_S = 5.0
KILL_S = 25.0  # and before they are killed; less than the runner's own grace period
AFTER_ALL = 10**9  # numbers of the events that report the end: larger than any program's


def number() -> int:
    """The rank of this process in its job, from 0."""
    return int(os.environ.get("RANK", 0))


def count() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def are_started() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def start_them(program: str, count: int, spec: str) -> None:
    """Replace this process with the one that starts the others, which frees the memory of its
    imports.
    """
    os.execv(sys.executable, [sys.executable, "-m", __name__, program, str(count), spec])


@dataclass
class Process:
    number: int
    child: subprocess.Popen
    events: BinaryIO | None  # a file, except for the first process, which has the job's own pipe
    status: int | None = None

    @property
    def in_words(self) -> str:
        name = (
            signal.Signals(-self.status).name if self.status is not None and self.status < 0 else ""
        )
        return f"was killed ({name})" if name else f"ended with status {self.status}"


class Processes:
    def __init__(self, program: str, count: int, spec: str, pipe: int) -> None:
        self.pipe, self.ended, self.asked = pipe, list[Process](), False
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = os.environ | {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": (
                os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // count))
            ),
        }
        self.all = [self._started(program, spec, at, shared) for at in range(count)]

    def _started(self, program: str, spec: str, at: int, shared: dict[str, str]) -> Process:
        file = tempfile.TemporaryFile() if at else None  # noqa: SIM115 - read when all have ended
        events = file.fileno() if file else self.pipe
        child = again(
            [program, spec],
            pass_fds=[events],
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
            env=shared
            | {
                "RANK": str(at),
                "LOCAL_RANK": str(at),
                "FLYWHEEL_EVENTS_FD": str(events),
            },
        )
        return Process(at, child, file)

    def follow(self) -> int:
        """Wait for all processes; return the job's exit status: that of the first process that
        failed.
        """
        failed_at = asked_at = None
        while running := [one for one in self.all if one.status is None]:
            for one in running:
                one.status = one.child.poll()
                if one.status is not None:
                    self.ended.append(one)
            now = time.monotonic()
            if failed_at is None and any(one.status for one in self.ended):
                failed_at = now
            if asked_at is None and (
                self.asked or (failed_at is not None and now - failed_at > END_S)
            ):
                asked_at = now
                self.signal(signal.SIGTERM)
            if asked_at is not None and now - asked_at > KILL_S:
                self.signal(signal.SIGKILL)
            time.sleep(0.05)
        return self.status()

    def signal(self, which: int) -> None:
        for one in self.all:
            if one.status is None:
                one.child.send_signal(which)

    def status(self) -> int:
        bad = [one for one in self.ended if one.status]
        if not bad:
            return 0
        first = next((one for one in bad if one.status != LOST), bad[0])
        silent = (
            self.all[0].status == LOST or (self.all[0].status or 0) < 0
        )  # none of them has reported an error
        if silent and (error := next(filter(None, map(error_of, self.ended)), None)):
            self.emit(error)
            return 1
        if silent or first is not self.all[0]:
            self.emit(
                {
                    "type": "log",
                    "level": "warning",
                    "message": (
                        f"Process {first.number + 1} of {len(self.all)} {first.in_words}, and the"
                        " others were ended with it."
                    ),
                }
            )
        return 128 - (first.status or 0) if (first.status or 0) < 0 else first.status or 0

    def emit(self, event: dict[str, Any]) -> None:
        line = json.dumps(event | {"seq": AFTER_ALL}).encode() + b"\n"
        while line:
            line = line[os.write(self.pipe, line) :]


def error_of(process: Process) -> dict[str, Any] | None:
    """The error event of a process without the job's pipe."""
    if process.events is None:
        return None
    process.events.seek(0)
    return next(
        (event for event in map(json.loads, process.events) if event["type"] == "error"), None
    )


def main(program: str, count: int, spec: str) -> int:
    processes = Processes(
        program, count, spec, int(os.environ.get("FLYWHEEL_EVENTS_FD") or sys.stdout.fileno())
    )
    signal.signal(signal.SIGTERM, lambda *_: setattr(processes, "asked", True))
    return processes.follow()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
