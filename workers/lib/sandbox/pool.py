"""A pool of warm sandboxed processes. Each run is a new fork of one; a server that is lost is
replaced.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from workers.lib.framed import Lost
from workers.lib.sandbox.server import Server
from workers.lib.sandbox.types import DEFAULT, Budget, CodeError, Limits, Ran, SandboxError
from workers.lib.sandbox.visits import Refused, Visit, current

MAX_SOURCE = 256 << 10
SLOW_S = 1.0
BUSY = "The sandbox is busy with graders that take long. Try again in a few seconds."


class Slots:
    """Slots in the pool. The owner of a visit gets at most half of them, and nobody waits long in
    vain.

    As many runs of one owner may wait as may run. Additional ones give up after SLOW_S, or
    immediately if the owner's running ones have been slow. So a user who sends graders endlessly
    can block neither the pool nor the threads that serve pages.
    """

    def __init__(self, size: int) -> None:
        self.size, self.share = size, max(1, size // 2)
        self._changed = threading.Condition()
        self._taken = 0
        self._running: dict[int, tuple[str, float]] = {}  # runs of visits: (owner, start time)
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def take(self, visit: Visit | None) -> Iterator[None]:
        """A slot for this thread. Raises Refused if a visit waits too long."""
        with self._changed:
            if visit is None:
                self._changed.wait_for(lambda: self._taken < self.size)
            else:
                self._wait(visit)
                self._running[threading.get_ident()] = (visit.owner, time.monotonic())
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._running.pop(threading.get_ident(), None)
                self._changed.notify_all()

    def _wait(self, visit: Visit) -> None:
        if self._is_free(visit.owner):
            return
        is_last = self._waiting[visit.owner] >= self.share
        if is_last and self._is_slow(visit.owner):
            raise Refused(BUSY)
        self._waiting[visit.owner] += 1
        try:
            patience = min(visit.wait, SLOW_S) if is_last else visit.wait
            if not self._changed.wait_for(lambda: self._is_free(visit.owner), patience):
                raise Refused(BUSY)
        finally:
            self._waiting[visit.owner] -= 1

    def _is_free(self, owner: str) -> bool:
        mine = sum(other == owner for other, _ in self._running.values())
        return self._taken < self.size and mine < self.share

    def _is_slow(self, owner: str) -> bool:
        since = [start for other, start in self._running.values() if other == owner]
        return bool(since) and time.monotonic() - max(since) > SLOW_S


class Pool:
    """Up to `size` servers, started when first needed. May be used by any number of threads, each
    of which waits for its turn.
    """

    def __init__(self, size: int = 4) -> None:
        self._slots = Slots(size)
        self._idle: list[Server] = []
        self._all: set[Server] = set()
        self._closes = 0
        self._pid = os.getpid()

    def grade(self, code: str, sample: dict, item: dict, *, limits: Limits = DEFAULT) -> float:
        """The result of `grade(sample, item)` in the code. Raises CodeError if it fails or is not a
        finite number.
        """
        value = self.call(code, "grade", [sample, item], limits=limits)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise CodeError("value", f"grade returned {value!r:.100}, not a finite number")
        return float(value)

    def call(
        self,
        code: str,
        function: str,
        arguments: list,
        *,
        limits: Limits = DEFAULT,
        together: Budget | None = None,
    ) -> Any:
        """The JSON value that a function in the code returns. Raises CodeError if the code
        fails.
        """
        if len(code.encode()) > MAX_SOURCE:
            raise CodeError("value", f"the source is longer than {MAX_SOURCE} bytes")
        request = {"mode": "call", "source": code, "function": function, "arguments": arguments}
        answer = self._ask(request, limits, together)
        result = answer["result"]
        if answer["reason"] not in ("ok", "killed") or (
            answer["reason"] == "killed" and not result
        ):
            raise CodeError(answer["reason"], answer["stderr"])
        if "error" in result:
            raise CodeError(
                "memory" if result.get("kind") == "MemoryError" else "exception", result["error"]
            )
        if "value" not in result:
            raise CodeError("forged", "the process ended without a result of its own")
        return result["value"]

    def run(
        self,
        program: str,
        *,
        stdin: str = "",
        files: dict[str, str] | None = None,
        limits: Limits = DEFAULT,
        together: Budget | None = None,
    ) -> Ran:
        """Run a Python program in the scratch folder, with the files in it. Raises ValueError for a
        path outside of it, CodeError if `together` is used up.
        """
        for name in files or {}:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"The file “{name}” would not lie in the scratch folder.")
        answer = self._ask(
            {"mode": "run", "source": program, "stdin": stdin, "files": files or {}},
            limits,
            together,
        )
        return Ran(
            answer["code"], answer["stdout"], answer["stderr"], answer["seconds"], answer["reason"]
        )

    def guards(self) -> dict[str, bool]:
        with self._server() as server:
            return dict(server.guards)

    def close(self) -> None:
        """End every server and all runs that wait for one. The pool may be used again; it then
        starts new servers.
        """
        self._closes += 1
        for server in list(self._all):
            self._drop(server)

    def _ask(self, request: dict, limits: Limits, together: Budget | None) -> dict:
        visit = current()
        with self._server() as server:
            if visit is not None:
                limits = _within(limits, visit.seconds, "score it in a job")
            if together is not None:
                limits = _within(limits, together.seconds, "the code is too slow")
            started = time.monotonic()
            try:
                answer = server.ask(request | {"limits": limits.as_dict()})
            except Lost as error:
                self._drop(server)
                raise CodeError(
                    "killed", f"the sandbox was lost during the run: {error}"
                ) from error
            finally:
                for budget in (visit, together):
                    if budget is not None:
                        budget.seconds -= time.monotonic() - started
            if answer["last"]:
                self._drop(server)
        if answer["guard"]:
            raise SandboxError(
                f"A guard of the sandbox failed: {answer['guard'].strip().splitlines()[-1]}"
            )
        return answer

    @contextmanager
    def _server(self) -> Iterator[Server]:
        """A server for this thread alone: an idle one that is alive, else a new one."""
        closes = self._closes
        with self._slots.take(current()):
            server = self._living()
            # The pool was closed while this run waited or its server started: nobody else would end
            # it.
            if self._closes != closes:
                self._drop(server)
                raise CodeError("killed", "the pool was closed")
            try:
                yield server
            finally:
                if server in self._all:
                    self._idle.append(server)

    def _living(self) -> Server:
        while self._idle:
            server = self._idle.pop()
            if server in self._all and server.process.poll() is None:
                return server
            self._drop(server)
        server = Server()
        self._all.add(server)
        return server

    def _drop(self, server: Server) -> None:
        self._all.discard(server)
        if os.getpid() == self._pid:
            server.close()


def _within(limits: Limits, left: float, advice: str) -> Limits:
    """The limits, reduced to the time that all runs together have left. Raises CodeError if there
    is none.
    """
    if left <= 0:
        raise CodeError(
            "time", f"the runs of this request have taken all the time they may; {advice}"
        )
    return replace(limits, seconds=min(limits.seconds, left))


_shared: Pool | None = None
_lock = threading.Lock()


def shared() -> Pool:
    """This process's pool, with FLYWHEEL_SANDBOX_PROCESSES servers (4). A forked process gets its
    own.
    """
    global _shared
    with _lock:
        if _shared is None or _shared._pid != os.getpid():
            _shared = Pool(int(os.environ.get("FLYWHEEL_SANDBOX_PROCESSES", "4")))
            atexit.register(_shared.close)
        return _shared
