"""What granian serves: Django, in workers that die with their master, so that a new one finds the port free."""

from __future__ import annotations

import signal
from typing import Any

from flywheel.orphans import end_with_parent


def application() -> Any:
    """Called once in each worker."""
    end_with_parent(signal.SIGKILL)()
    from flywheel.wsgi import application

    return application


def command(host: str, port: int, workers: int) -> list[str]:
    """The arguments after `python -m`. Threads keep their database connection, so they are kept for long."""
    given = {
        "interface": "wsgi",
        "host": host,
        "port": port,
        "workers": workers,
        "blocking-threads": 8,
        "blocking-threads-idle-timeout": 600,
        "backlog": 1024,
        "workers-kill-timeout": 8,
        "respawn-interval": 1,
        "log-level": "error",
    }
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return ["granian", *options, "--factory", "--no-ws", "--respawn-failed-workers", "flywheel.web:application"]
