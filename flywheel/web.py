"""Gunicorn's configuration: a worker dies with its master, so that a new master finds the port free."""

from __future__ import annotations

import signal
from typing import Any

from flywheel.orphans import end_with_parent


def post_fork(server: Any, worker: Any) -> None:
    end_with_parent(signal.SIGKILL)()
