"""`python guard.py SECONDS COMMAND …`: runs a command, and ends its whole process group when the
command ends, on SIGTERM, or when the process that started the guard dies. vLLM's engine outlives
the process that started it, and would keep the GPU's memory; a guard in between is not killed with
its parent, so it can end the engine. Standard library only, since it is run as a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from functools import partial

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """This process gets the signal when its parent dies (Linux). Run in a child after fork, it
    takes no lock that another thread of the parent may have held, so the library is loaded before.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, number)


def main(grace_s: float, parent: int, command: list[str]) -> int:
    """Returns the command's exit status, or 128 + n if signal n ended it. After SIGTERM the command
    has `grace_s` seconds to end.
    """
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    end_with_parent(signal.SIGTERM)
    child = subprocess.Popen(
        command, start_new_session=True, preexec_fn=partial(end_with_parent, signal.SIGKILL)
    )
    try:
        while not asked and os.getppid() == parent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.5)
                break
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=grace_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    status = child.wait()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    try:
        sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
    except OSError as error:
        sys.exit(f"{sys.argv[3]} cannot be started: {error.strerror}.")
