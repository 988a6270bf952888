"""What processes count, in Prometheus' form. Processes of one start share their counts by files of
a folder in memory (VARIABLE): a file on a disk that is full would end who writes to it (SIGBUS).

Without that variable a process counts for itself.
"""

from __future__ import annotations

import hmac
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from flywheel.logs import PROBES

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
    ("/rollout/", "environments"),
    ("/static/", "static"),
    ("/", "pages"),
)
FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")
REFUSED = (
    "Set FLYWHEEL_METRICS_TOKEN and send it as “Authorization: Bearer TOKEN”, or ask from the same"
    " machine, not through a proxy (docs/operations.md)."
)
ANSWER_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
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


def forget(folder: str, pid: int) -> None:
    """What a process that has ended was doing is not done any more; what it counted is kept."""
    for path in Path(folder).glob(f"gauge_live*_{pid}.db"):
        path.unlink(missing_ok=True)


def counted_here() -> Any:
    """A registry of what is counted by this process, or by all of this start."""
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    if VARIABLE in os.environ:
        MultiProcessCollector(registry)
    else:
        registry.register(Families(REGISTRY.collect))
    return registry


class Families:
    """A collector."""

    def __init__(self, collect: Callable[[], Any]) -> None:
        self.collect = collect


def may_read(sent: str, address: str, *, forwarded: bool, token: str) -> bool:
    """Whether somebody who sent this as Authorization may: with the token, or from this machine
    and not through a proxy.
    """
    if token and hmac.compare_digest(sent.removeprefix("Bearer ").encode(), token.encode()):
        return True
    try:
        return not forwarded and ip_address(address).is_loopback
    except ValueError:
        return False


def door_of(path: str) -> str:
    return next(door for prefix, door in DOORS if path.startswith(prefix) or prefix == "/")


def counted(application: Callable[..., Any]) -> Callable[..., Any]:
    """Of a WSGI application: its requests, what they were answered, and how long that took."""
    from flywheel.counters import REQUESTS, SECONDS

    def answer(sent: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = sent.get("PATH_INFO", "/")
        if path in PROBES:
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
