"""Children that do not outlive the process that started them: the kernel signals them when it dies
(Linux).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LIBC = ctypes.CDLL(None)


def end_with_parent(number: int) -> Callable[[], None]:
    """Run in a child after fork: it gets this signal when its parent dies. It takes no lock that
    another thread of the parent may have held at the fork, so the library is loaded before.
    """

    def after_fork() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, number)

    return after_fork


def set_title(text: str) -> None:
    """What `ps -o comm`, `top` and /proc/…/comm say of this process: the first 15 bytes."""
    LIBC.prctl(PR_SET_NAME, text.encode())
