"""A child process that answers requests one at a time. Messages are JSON, preceded by their length.
It is killed if it does not answer.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import time
from contextlib import suppress
from typing import Any

MAX_ANSWER = 32 << 20


class Lost(RuntimeError):
    """The process died or did not answer in time, and cannot be used any more."""


class Framed:
    """The process as seen from outside. Its only environment variables are `env`, and it has its
    own session.
    """

    def __init__(self, command: list[str], *, env: dict[str, str], cwd: str = "/") -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=cwd,
            close_fds=True,
            start_new_session=True,
            bufsize=0,
        )

    def send(self, request: dict, seconds: float) -> Any:
        """The answer to a request. Raises Lost."""
        body = json.dumps(request).encode()
        self._write(struct.pack(">I", len(body)) + body)
        return self.receive(seconds)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                stream.close()

    def receive(self, seconds: float) -> Any:
        """The next message. Raises Lost."""
        end = time.monotonic() + seconds
        size = struct.unpack(">I", self._exactly(4, end))[0]
        if size > MAX_ANSWER:
            raise Lost("the answer is too long")
        return json.loads(self._exactly(size, end))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.process.stdin.fileno(), view) :]
        except OSError as error:
            raise Lost("the process is gone") from error

    def _exactly(self, count: int, end: float) -> bytes:
        if self.process.stdout.closed:
            raise Lost("the pool was closed")
        handle, parts = self.process.stdout.fileno(), bytearray()
        while len(parts) < count:
            try:
                ready = select.select([handle], [], [], max(0.0, end - time.monotonic()))[0]
                piece = os.read(handle, count - len(parts)) if ready else b""
            except OSError as error:  # closed by another thread
                raise Lost("the pool was closed") from error
            if not ready:
                raise Lost("no answer in time")
            if not piece:
                raise Lost("the process ended")
            parts += piece
        return bytes(parts)
