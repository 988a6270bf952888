"""The processes of an installation, and how each is started: `up`, docker/compose.yaml, the chart
in docker/chart and the units in docker/systemd run these.

`python -m flywheel.processes NAME` becomes that process; with `--check` it says by its exit status
whether the process of this container works.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from flywheel import beginning, metrics, places, priority, private
from flywheel.embedded import ServiceError

# Those that assemble and digest take different traces and projects, and wait for the disk in
# between.
INGEST = min(4, max(2, os.cpu_count() or 1))
# A server is a task for as long as it runs.
SERVE = int(os.environ.get("FLYWHEEL_SERVE_AT_ONCE") or 2)
WORKERS = {
    "default": 2,
    "ingest": INGEST,
    "judge": 4,
    "eval": 1,
    "train": 1,
    "serve": SERVE,
}  # queue: tasks at once
# Whose tasks mostly wait for a model's server: threads of one process. Nothing else waits behind
# them, and what a person waits for goes before the rest (settings.CELERY_TASK_ROUTES).
THREADED = {"judge"}
OPTIONAL = {"serve"}  # where installations have no machine that serves; nothing else waits for it
NAMES = ("web", "endpoint", *WORKERS, "beat")
IMAGES = dict.fromkeys(NAMES, "web") | {"eval": "worker", "train": "worker", "serve": "serve"}
LIGHT = ("eval", "train", "serve")  # queues whose tasks only follow a child process
ENDPOINT_PORT = 8001
WEB_PROCESSES = 2
ENDPOINT_STOPS_S = 30  # for which open streams may go on
# Celery's cold shutdown: a job of minutes is not waited for; the reaper queues it again from its
# checkpoint.
STOP_SIGNAL = {"eval": signal.SIGQUIT, "train": signal.SIGQUIT, "serve": signal.SIGQUIT}
CONNECTIONS_NAMED = "PGAPPNAME"  # libpq's variable: what pg_stat_activity calls who is connected
NAMED = "FLYWHEEL_PROCESS"  # the variable that tells a process which of these it is
WORKER_PID = "FLYWHEEL_WORKER_PID"  # the variable that tells it to the processes of its pool
SILENT_S = 60
CELERY = ("celery", "-q", "-A", "flywheel")
THREADS = ("--pool", "threads")
# What `up` runs instead, each part in this many processes that share the memory of their imports
# (flywheel.forks): servers without a master, one task at a time in each worker.
PARTS = {
    "web": WEB_PROCESSES,
    "endpoint": 1,
    "storing": 1,
    "default": WORKERS["default"],
    "ingest": WORKERS["ingest"],
    "judge": 1,
    "light": 1,
}


def command(name: str, *, host: str = "0.0.0.0", port: int = 8000) -> list[str]:
    """The arguments after `python -m`."""
    if name == "web":
        return ["granian", *_web(host, port, WEB_PROCESSES), "flywheel.web:application"]
    if name == "endpoint":
        return ["granian", *_endpoint(host, port), "flywheel.endpoint:application"]
    if name == "beat":
        return [*CELERY, "beat", "--pidfile=", "--loglevel", "WARNING"]
    worker = _worker(name, f"{name}@%h", WORKERS[name])
    return [*worker, *THREADS] if name in THREADED else worker


def fork_command(part: str, number: int, *, host: str, port: int) -> list[str]:
    """The arguments after `python -m` of the so-manieth process of a part of `up`."""
    if part == "web":
        return ["flywheel.masterless", *_web(host, port, 1), "flywheel.web:application"]
    if part == "endpoint":
        return ["flywheel.masterless", *_endpoint(host, port), "flywheel.endpoint:without_storing"]
    if part == "storing":
        return ["django", "store_answers"]
    if part == "light":
        return ["flywheel.light"]
    at_once = WORKERS[part] if part in THREADED else 1
    # A message that waits behind a task would not reach the other process that is free.
    return [*_worker(part, f"{part}@{number}.%h", at_once), *THREADS, "--disable-prefetch"]


def _worker(queue: str, name: str, at_once: int) -> list[str]:
    given = {"-Q": queue, "-n": name, "--concurrency": str(at_once), "--loglevel": "WARNING"}
    options = [text for option in given.items() for text in option]
    return [*CELERY, "worker", *options, "--without-gossip", "--without-mingle"]


def _web(host: str, port: int, workers: int) -> list[str]:
    """Threads keep their database connection, so they are kept for long."""
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
        "log-level": "warning",
        "log-config": Path(__file__).with_name("granian_logging.json"),
    }
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return [*options, "--factory", "--no-ws", "--respawn-failed-workers"]


def _endpoint(host: str, port: int) -> list[str]:
    """One process: limits by key are counted there. Streams that are open when it is stopped may
    end.
    """
    given = {
        "interface": "asgi",
        "host": host,
        "port": port,
        "loop": "uvloop",
        "backlog": 2048,
        "backpressure": 2000,
        "workers-kill-timeout": ENDPOINT_STOPS_S,
        "respawn-interval": 1,
        "log-level": "warning",
        "log-config": Path(__file__).with_name("granian_logging.json"),
    }
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return [*options, "--factory", "--no-ws", "--respawn-failed-workers"]


def require_schema() -> None:
    """Ends a process, with a sentence, whose database is of another version."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import CommandError
    from django.db import connection

    try:
        django.setup()
        from apps.core import schema

        schema.require_current()
        connection.close()
    except (CommandError, ImproperlyConfigured) as error:
        sys.exit(str(error))


def works(name: str, port: int) -> bool:
    """Whether the process of that name in this container does: a server answers, a worker or beat
    was busy lately.
    """
    if name not in ("web", "endpoint"):
        path = alive_file(name)
        return path.exists() and time.time() - path.stat().st_mtime < SILENT_S
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status < 500  # 400: a host that is not allowed
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def alive_file(name: str) -> Path:
    """Touched by workers and beat while they work."""
    return Path(tempfile.gettempdir()) / f"flywheel-{name}.alive"


def worker_id() -> str:
    """The worker that this process is, or is of the pool of."""
    return f"{socket.gethostname()}:{os.environ.get(WORKER_PID) or os.getpid()}"


def name_connections(part: str) -> None:
    """Before the first of them."""
    os.environ.setdefault(CONNECTIONS_NAMED, f"flywheel-{part}")


def say_works() -> None:
    """Of a process that was started by `main`."""
    if name := os.environ.get(NAMED):
        with contextlib.suppress(OSError):
            alive_file(name).touch()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flywheel.processes", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="whether it works")
    given = parser.parse_args()
    given.port = given.port or (ENDPOINT_PORT if given.name == "endpoint" else 8000)
    if given.check:
        sys.exit(not works(given.name, given.port))
    os.environ[NAMED] = given.name
    name_connections(given.name)
    private.restrict_umask()
    try:
        beginning.require_installation(given.name)
    except ServiceError as error:
        sys.exit(f"{error}")
    places.keep_data_dir()
    require_schema()
    priority.start(given.name)
    if given.name == "web":
        from apps.core import static_files

        static_files.collect()
        os.environ.setdefault(metrics.VARIABLE, metrics.new_folder())
    os.execv(
        sys.executable,
        [sys.executable, "-m", *command(given.name, host=given.host, port=given.port)],
    )


if __name__ == "__main__":
    main()
