"""Whether two answers are mathematically equal. Light: sympy runs in helper processes (`python -m
workers.maths`), which live for many answers and are killed if one takes too long or too much
memory.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from workers.lib.framed import Framed, Lost
from workers.lib.sandbox.pool import Slots
from workers.lib.sandbox.visits import current

CPU_SECONDS, MEMORY = 4.0, 1 << 30  # seconds per comparison, bytes per helper
LONGEST = 1000  # characters per answer
WALL_SECONDS = 120.0  # reached only if the machine stalls
MOST_ANSWERS = 2000  # sympy's caches grow, so a helper is replaced after this many answers
ROOT = Path(__file__).parents[3]


class TooMuch(Exception):
    """Comparing this answer would exceed the limits on time or memory."""


class HelperError(RuntimeError):
    """The helper process itself does not work, which says nothing about the answer."""


class Helper(Framed):
    def __init__(self) -> None:
        seconds = os.environ.get("FLYWHEEL_MATHS_CPU_SECONDS", str(CPU_SECONDS))
        environment = {
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "FLYWHEEL_MATHS_CPU_SECONDS": seconds,
        }
        super().__init__([sys.executable, "-m", "workers.maths"], env=environment, cwd=str(ROOT))
        self.answers = 0


class Helpers:
    """Up to `size` helpers, started when first needed. May be used from any number of threads."""

    def __init__(self, size: int) -> None:
        self._slots, self._pid = Slots(size), os.getpid()
        self._idle: list[Helper] = []

    def ask(self, request: dict) -> dict:
        """Raises TooMuch, or HelperError if a helper dies twice for another reason."""
        visit = current()
        with self._slots.take(visit):
            started = time.monotonic()
            try:
                return self._try(request) or self._try(request) or self._fail()
            finally:
                if visit is not None:
                    visit.seconds -= time.monotonic() - started

    def _try(self, request: dict) -> dict[str, Any] | None:
        """None if the helper was lost through no fault of the request."""
        helper = self._idle.pop() if self._idle else Helper()
        try:
            found = helper.send(request, WALL_SECONDS)
        except Lost:
            # Out of CPU time (SIGPROF) or, if it ended by itself, out of memory. Any other signal
            # is not the answer's fault.
            with suppress(Exception):
                helper.process.wait(1)
            ended = helper.process.poll()
            helper.close()
            if ended == -signal.SIGPROF or ended == 0:
                raise TooMuch("takes too much time or memory to compare") from None
            return None
        helper.answers += 1
        if helper.answers < MOST_ANSWERS:
            self._idle.append(helper)
        else:
            helper.close()
        return {"done": True} | found

    def _fail(self) -> dict:
        raise HelperError(
            "The helper process for mathematics ends by itself. Try `python -m workers.maths`."
        )

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_helpers: Helpers | None = None
_lock = threading.Lock()


def helpers() -> Helpers:
    """The helpers of this process, FLYWHEEL_MATHS_PROCESSES (2). A forked process gets its own."""
    global _helpers
    with _lock:
        if _helpers is None or _helpers._pid != os.getpid():
            _helpers = Helpers(int(os.environ.get("FLYWHEEL_MATHS_PROCESSES", "2")))
            atexit.register(_helpers.close)
        return _helpers


@lru_cache(maxsize=4096)
def compare(gold: str, given: str, positive: bool = False) -> tuple[bool, str]:
    """(whether the answer equals the gold one, if not why). Raises ValueError for a gold answer
    that cannot be parsed.
    """
    if problem := problem_of(gold):
        raise ValueError(problem)
    if len(given) > LONGEST:
        return False, f"the answer has {len(given):,} characters; {LONGEST:,} are allowed"
    try:
        found = helpers().ask({"gold": gold, "given": given, "positive": positive})
    except TooMuch as error:
        return False, f"the answer {error}"
    if left := found.get("undone"):
        return False, f"not evaluated: {given[:80]!r} leaves {' and '.join(left)} to be computed"
    return found.get("same", False), (
        f"not one clear answer: {found['given']}" if "given" in found else ""
    )


@lru_cache(maxsize=4096)
def problem_of(gold: str) -> str:
    """What is wrong with a gold answer; "" if it can be parsed."""
    if len(gold) > LONGEST:
        return f"has {len(gold):,} characters; {LONGEST:,} are allowed"
    try:
        return helpers().ask({"gold": gold}).get("gold", "")
    except TooMuch as error:
        return str(error)
