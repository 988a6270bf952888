"""Whether receivers are at work without a break. Web processes say so by the time of a file in the
data folder, which costs nothing to look at and is seen by all processes of the machine.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from flywheel.embedded import data_dir

WINDOW_S = 0.25
BUSY_FOR_S = 1.0  # after it was said


class Receivers:
    """The requests of a process: busy where in half of a window at least one was under way."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._began, self._worked_s = 0.0, 0.0

    def worked(self, since: float) -> None:
        """A request that began then (`time.monotonic`) is done."""
        now = time.monotonic()
        with self._lock:
            self._worked_s += now - since
            passed = now - self._began
            if passed < WINDOW_S:
                return
            is_busy = self._worked_s >= passed / 2
            self._began, self._worked_s = now, 0.0
        if is_busy:
            with suppress(OSError):
                self._path.touch()

    def are_busy(self) -> bool:
        with suppress(OSError):
            return time.time() - self._path.stat().st_mtime < BUSY_FOR_S
        return False


receivers = Receivers(data_dir() / "receiving")
