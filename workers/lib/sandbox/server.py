"""One sandboxed server process, seen from outside: started, asked, and killed when it does not answer."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from workers.lib.sandbox.types import SandboxError

INSIDE = Path(__file__).parent / "inside"
START_SECONDS, GRACE_SECONDS = 30.0, 10.0
MAX_ANSWER = 32 << 20
WEAK = (
    "The sandbox will not run: this machine does not allow it to shut off {lacking}. "
    "Allow user namespaces, seccomp and Landlock, wrap it with FLYWHEEL_SANDBOX_COMMAND, or accept the risk with "
    "FLYWHEEL_SANDBOX_WEAK=1 (see docs/sandbox.md)."
)


class Lost(RuntimeError):
    """The server died or did not answer in time."""


def command(folder: str) -> list[str]:
    """How the server is started: FLYWHEEL_SANDBOX_COMMAND before it, with {folder} for the sandbox's own code."""
    prefix = os.environ.get("FLYWHEEL_SANDBOX_COMMAND", "")
    packages = os.environ.get("FLYWHEEL_SANDBOX_PACKAGES", "")
    if not prefix:
        return [sys.executable, "-I", "-S", str(INSIDE), folder, packages]
    words = [word.replace("{folder}", str(INSIDE)) for word in shlex.split(prefix)]
    return [*words, "python3", "-I", "-S", str(INSIDE), "", packages]


def refuse_if_weak(guards: dict[str, bool]) -> None:
    """SandboxError unless network and files are shut off, a container does it, or the operator took the risk."""
    if os.environ.get("FLYWHEEL_SANDBOX_COMMAND") or os.environ.get("FLYWHEEL_SANDBOX_WEAK") == "1":
        return
    lacking = [name for name in ("network", "files") if not guards.get(name)]
    if lacking:
        raise SandboxError(WEAK.format(lacking=" and ".join(lacking)))


class Server:
    """A warm process that answers requests one at a time. SandboxError where it cannot start or would be too weak."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="flywheel-sandbox-")
        self.process = subprocess.Popen(
            command(self.folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            close_fds=True,
            start_new_session=True,
            bufsize=0,
        )
        try:
            hello = self._receive(START_SECONDS)
            if "guards" not in hello:
                raise SandboxError(f"The sandbox did not start: {hello.get('failed', 'no greeting')}")
            refuse_if_weak(hello["guards"])
        except Lost as error:
            self.close()
            raise SandboxError(f"The sandbox did not start: {error}") from error
        except SandboxError:
            self.close()
            raise
        self.guards: dict[str, bool] = hello["guards"]

    def ask(self, request: dict) -> dict:
        """The answer to a request. Lost where the server is gone; it is then of no more use."""
        body = json.dumps(request).encode()
        self._write(struct.pack(">I", len(body)) + body)
        return self._receive(request["limits"]["seconds"] + GRACE_SECONDS)

    def close(self) -> None:
        """Ends the process, and with it (pid namespace, parent-death signal) all that it started."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.process.stdin.fileno(), view) :]
        except OSError as error:
            raise Lost("the process is gone") from error

    def _receive(self, seconds: float) -> dict:
        end = time.monotonic() + seconds
        size = struct.unpack(">I", self._exactly(4, end))[0]
        if size > MAX_ANSWER:
            raise Lost("the answer is too long")
        return json.loads(self._exactly(size, end))

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
