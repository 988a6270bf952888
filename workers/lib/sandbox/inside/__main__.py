"""Started as `python -I -S inside FOLDER [PACKAGES]`: sets up the guards, then serves requests on
stdin and stdout.

Imports only the standard library and other modules in this folder, nothing else of Flywheel.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile

import kernel
from guards import Guards
from server import send, serve


def main() -> None:
    folder = (
        sys.argv[1]
        if len(sys.argv) > 1 and sys.argv[1]
        else tempfile.mkdtemp(prefix="flywheel-sandbox-")
    )
    packages = sys.argv[2] if len(sys.argv) > 2 else ""
    incoming, outgoing = _own_handles()
    try:
        guards = Guards(folder, packages)
        guards.prepare()
        if "pid" in guards.kinds:
            _be_first_process()
        guards.become_nobody()
        if "pid" in guards.kinds:  # after the change of user, which resets it
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        _tidy(packages)
        serve(guards, incoming, outgoing)
    except Exception as error:
        send(outgoing, {"failed": f"{type(error).__name__}: {error}"})


def _own_handles() -> tuple[int, int]:
    """Move stdin and stdout to high file descriptors, and point 0, 1 and 2 to nowhere."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    return incoming, outgoing


def _be_first_process() -> None:
    """Continue in a child that is process 1 of the pid namespace; when it ends, the kernel ends all
    processes in the namespace.
    """
    first = os.fork()
    if first:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)


def _tidy(packages: str) -> None:
    """Clear the environment, remove this folder from the import path, and load common modules
    before the first fork.
    """
    import base64, collections, dataclasses, datetime, decimal, difflib, fractions, importlib.util, inspect, itertools, math, pathlib  # noqa: E401, E501, F401, I001
    import random, re, statistics, string, traceback, typing  # noqa: E401, F401

    os.environ.clear()
    sys.path[:] = [*sys.path[1:], *([packages] if packages else [])]
    sys.argv[:] = ["main.py"]
    gc.collect()
    gc.freeze()


main()
