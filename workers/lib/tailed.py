"""A long-running child process, and the last lines of its output. Light: no torch, no Django."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from workers.lib.log_cause import plain

MOST_LINES, MOST_CHARS = 200, 400
CHUNK = 65_536
GUARD = Path(__file__).with_name("guard.py")


class Tailed:
    """Runs a command under `guard`, so that none of its processes outlives this one."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str], lines: deque[str], grace_s: float
    ) -> None:
        self.lines, self.grace_s = lines, grace_s
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), str(grace_s), str(os.getpid()), *command],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Read line by line, truncating each, since the output may be endless."""
        assert self.process.stdout is not None
        fd, rest = self.process.stdout.fileno(), b""
        while chunk := os.read(fd, CHUNK):
            *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
            rest = rest[-CHUNK:]
            self.lines.extend(printable(line) for line in whole if line.strip())
        if rest.strip():
            self.lines.append(printable(rest))

    @property
    def status(self) -> int | None:
        """The exit status (128 + n if signal n ended it); None while it runs."""
        return self.process.poll()

    def stop(self) -> None:
        """End the process; returns when it and everything it started have ended."""
        self.process.terminate()
        self.process.wait()


def new_lines() -> deque[str]:
    return deque(maxlen=MOST_LINES)


def printable(line: bytes) -> str:
    """The line without colours and control characters, truncated."""
    text = "".join(
        char if char.isprintable() or char == "\t" else "�"
        for char in plain(line[: 8 * MOST_CHARS].decode(errors="replace"))
    )
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
