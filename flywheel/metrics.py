"""What processes count, in Prometheus' form. Processes of one start share their counts by files of
a folder in memory (VARIABLE): a file on a disk that is full would end who writes to it (SIGBUS).

Without that variable a process counts for itself.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
NAME = "flywheel-metrics"
DOORS = (  # the first that matches
    ("/v1/traces", "otlp"),
    ("/v1/logs", "otlp"),
    ("/v1/metrics", "otlp"),
    ("/api/public/", "langfuse"),
    ("/api/v1/trajectories/", "trajectories"),
    ("/api/v1/scores/", "scores"),
    ("/api/", "api"),
    ("/v1/", "environments"),
    ("/env/", "environments"),
    ("/static/", "static"),
    ("/", "pages"),
)
UNCOUNTED = ("/healthz", "/livez", "/readyz", "/metrics")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def new_folder() -> str:
    """For processes that are about to be started; those that were left behind are removed."""
    shared = Path("/dev/shm")
    root = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    for left in root.glob(f"{NAME}-{os.getuid()}-*"):
        pid = re.fullmatch(rf"{NAME}-\d+-(\d+)", left.name)
        if pid and not _is_running(int(pid[1])):
            shutil.rmtree(left, ignore_errors=True)
    folder = root / f"{NAME}-{os.getuid()}-{os.getpid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def door_of(path: str) -> str:
    return next(door for prefix, door in DOORS if path.startswith(prefix) or prefix == "/")


def counted(application: Callable[..., Any]) -> Callable[..., Any]:
    """Of a WSGI application: its requests, what they were answered, and how long that took."""
    from flywheel.counters import REQUESTS, SECONDS

    def answer(sent: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = sent.get("PATH_INFO", "/")
        if path in UNCOUNTED:
            return application(sent, start_response)
        door, began = door_of(path), time.perf_counter()
        code = ["500"]

        def start(status: str, headers: Any, *more: Any) -> Any:
            code[0] = status[:3]
            return start_response(status, headers, *more)

        try:
            return application(sent, start)
        finally:
            REQUESTS.labels(door, code[0]).inc()
            SECONDS.labels(door).observe(time.perf_counter() - began)

    return answer
