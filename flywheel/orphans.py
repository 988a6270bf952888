"""Children that do not outlive the process that started them: the kernel signals them when it dies
(Linux).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent(number: int) -> Callable[[], None]:
    """Run in a child after fork: it gets this signal when its parent dies."""

    def after_fork() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, number)

    return after_fork
