"""Warm sandboxed processes. Each run is a fresh fork of one; a server that is lost is replaced."""

from __future__ import annotations

import atexit
import math
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from workers.lib.sandbox.server import Lost, Server
from workers.lib.sandbox.types import DEFAULT, CodeError, Limits, Ran, SandboxError

MAX_SOURCE = 256 << 10


class Pool:
    """Up to `size` servers, started when first needed; any number of threads may ask at once, each waits its turn."""

    def __init__(self, size: int = 2) -> None:
        self._idle: queue.LifoQueue[Server | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._all: set[Server] = set()
        self._pid = os.getpid()

    def grade(self, code: str, sample: dict, item: dict, *, limits: Limits = DEFAULT) -> float:
        """What `grade(sample, item)` of the code returns. CodeError where it fails or gives no finite number."""
        value = self.call(code, "grade", [sample, item], limits=limits)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CodeError("value", f"grade returned {value!r:.100}, not a finite number")
        return float(value)

    def call(self, code: str, function: str, arguments: list, *, limits: Limits = DEFAULT) -> Any:
        """The JSON value that a function of the code returns. CodeError where the code fails."""
        if len(code.encode()) > MAX_SOURCE:
            raise CodeError("value", f"the source is longer than {MAX_SOURCE} bytes")
        answer = self._ask({"mode": "call", "source": code, "function": function, "arguments": arguments}, limits)
        result = answer["result"]
        if answer["reason"] not in ("ok", "killed") or (answer["reason"] == "killed" and not result):
            raise CodeError(answer["reason"], answer["stderr"])
        if "error" in result:
            raise CodeError("memory" if result.get("kind") == "MemoryError" else "exception", result["error"])
        if "value" not in result:
            raise CodeError("forged", "the process ended without a result of its own")
        return result["value"]

    def run(
        self, program: str, *, stdin: str = "", files: dict[str, str] | None = None, limits: Limits = DEFAULT
    ) -> Ran:
        """Runs a Python program in the scratch folder, with the files in it. ValueError for a path that leads out."""
        for name in files or {}:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"The file “{name}” would not lie in the scratch folder.")
        answer = self._ask({"mode": "run", "source": program, "stdin": stdin, "files": files or {}}, limits)
        return Ran(answer["code"], answer["stdout"], answer["stderr"], answer["seconds"], answer["reason"])

    def guards(self) -> dict[str, bool]:
        with self._server() as server:
            return dict(server.guards)

    def close(self) -> None:
        """Ends every server. The pool may be used again; it then starts new ones."""
        for server in list(self._all):
            self._drop(server)

    def _ask(self, request: dict, limits: Limits) -> dict:
        with self._server() as server:
            try:
                answer = server.ask(request | {"limits": limits.as_dict()})
            except Lost as error:
                self._drop(server)
                raise CodeError("killed", f"the sandbox was lost during the run: {error}") from error
            if answer["last"]:
                self._drop(server)
        if answer["guard"]:
            raise SandboxError(f"A guard of the sandbox failed: {answer['guard'].strip().splitlines()[-1]}")
        return answer

    @contextmanager
    def _server(self) -> Iterator[Server]:
        """A server for this thread alone; a new one where the slot is empty or its server has died."""
        server = self._idle.get()
        try:
            if server is not None and (server not in self._all or server.process.poll() is not None):
                self._drop(server)
                server = None
            if server is None:
                server = Server()
                self._all.add(server)
            yield server
        finally:
            self._idle.put(server if server in self._all else None)

    def _drop(self, server: Server) -> None:
        self._all.discard(server)
        if os.getpid() == self._pid:
            server.close()


_shared: Pool | None = None
_lock = threading.Lock()


def shared() -> Pool:
    """This process's pool, of FLYWHEEL_SANDBOX_PROCESSES servers (2); a forked process gets one of its own."""
    global _shared
    with _lock:
        if _shared is None or _shared._pid != os.getpid():
            _shared = Pool(int(os.environ.get("FLYWHEEL_SANDBOX_PROCESSES", "2")))
            atexit.register(_shared.close)
        return _shared
