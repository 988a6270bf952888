"""Helper processes for work that hostile input can make endless. A helper is a program
(`python -m workers.NAME`) that answers one request after another; the kernel ends it if a request
takes too much processor time or memory.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.lib.framed import Framed, Lost
from workers.lib.garbage import is_imported
from workers.lib.sandbox.pool import Slots
from workers.lib.sandbox.visits import current

WALL_SECONDS = 120.0  # reached only if the machine stalls
MOST_ANSWERS = 2000  # a helper is replaced after this many answers, since libraries' caches grow
ROOT = Path(__file__).parents[2]
# Out of processor time, of memory (it ends by itself), or of stack.
EXCEEDED = (-signal.SIGPROF, 0, -signal.SIGSEGV, -signal.SIGABRT)


class TooMuch(Exception):
    """The request would exceed the limits on time or memory."""


class HelperError(RuntimeError):
    """The helper process itself does not work, which says nothing about the request."""


class Helper(Framed):
    def __init__(self, program: str) -> None:
        environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        super().__init__([sys.executable, "-m", program], env=environment, cwd=str(ROOT))
        self.answers = 0


class Helpers:
    """Up to `size` helpers, started when first needed. May be used from any number of threads."""

    def __init__(self, program: str, size: int, seconds: float) -> None:
        """`seconds` of processor time for each request."""
        self.program, self.seconds, self.pid = program, seconds, os.getpid()
        self._slots = Slots(size)
        self._idle: list[Helper] = []

    def ask(self, request: dict, seconds: float | None = None) -> dict[str, Any]:
        """The answer, with `left`: the processor time that it left. Raises TooMuch, or HelperError
        if a helper dies twice for another reason.
        """
        message = {"seconds": self.seconds if seconds is None else seconds, "request": request}
        visit = current()
        with self._slots.take(visit):
            started = time.monotonic()
            try:
                return self._try(message) or self._try(message) or self._fail()
            finally:
                if visit is not None:
                    visit.seconds -= time.monotonic() - started

    def _try(self, message: dict) -> dict[str, Any] | None:
        """None if the helper was lost through no fault of the request."""
        helper = self._idle.pop() if self._idle else Helper(self.program)
        try:
            answer = helper.send(message, WALL_SECONDS)
        except Lost:
            with suppress(Exception):
                helper.process.wait(1)
            ended = helper.process.poll()
            helper.close()
            if ended in EXCEEDED:
                raise TooMuch("takes too much time or memory") from None
            return None
        helper.answers += 1
        if helper.answers < MOST_ANSWERS:
            self._idle.append(helper)
        else:
            helper.close()
        return answer

    def _fail(self) -> dict:
        raise HelperError(
            f"The helper process ends by itself. Try `{sys.executable} -m {self.program}`."
        )

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_of_program: dict[str, Helpers] = {}
_lock = threading.Lock()


def helpers_of(program: str, size: int, seconds: float) -> Helpers:
    """The helpers of this process that run a program. A forked process gets its own."""
    with _lock:
        pool = _of_program.get(program)
        if pool is None or pool.pid != os.getpid():
            pool = _of_program[program] = Helpers(program, size, seconds)
            atexit.register(pool.close)
        return pool


def serve(answer: Callable[[dict], dict], memory: int, first: dict) -> None:
    """Runs a helper program until its standard input ends. `first` is answered to nobody, so that
    tables are built. The kernel's timer ends it, since no Python code runs inside of a long
    operation of a library.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries' output must not be mistaken for an answer
    answer(first)
    is_imported()
    while head := source.read(4):
        message = json.loads(source.read(struct.unpack(">I", head)[0]))
        signal.setitimer(signal.ITIMER_PROF, message["seconds"])
        try:
            found = answer(message["request"])
        except MemoryError:
            return
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        body = json.dumps(found | {"left": left}).encode()
        sink.write(struct.pack(">I", len(body)) + body)
        sink.flush()
