"""Gunicorn's configuration: a worker dies with its master, so that a new master finds the port free."""

from __future__ import annotations

import ctypes
import signal
from typing import Any

PR_SET_PDEATHSIG = 1


def post_fork(server: Any, worker: Any) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
