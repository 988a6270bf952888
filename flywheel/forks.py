"""A process that imports the product once and forks the parts of `up` from it: they share the
memory of what is imported, and start at once. `python -m flywheel.forks DESCRIPTOR`

The descriptor is a socket. A request is one JSON message, and is answered before the next:
{"start": [the words after `python -m`], "title": …, "part": …}, with the descriptor of the output,
is answered with the process id; {"poll": id} with the exit status, or null while it runs. A part
that has ended keeps its id until it was polled, so that a signal can never hit another process.
When the other end of the socket closes this process ends, and the kernel signals the parts.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from flywheel import priority
from flywheel.processes import name_connections, require_schema
from workers.lib.guard import LIBC, end_with_parent

ROOT = Path(__file__).resolve().parent.parent
MESSAGE_BYTES = 65_536
PR_SET_NAME = 15
IMPORTED = (
    "apps.serving.endpoint",
    "apps.serving.storing",
    "celery.bin.celery",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "django_celery_beat.schedulers",
    "genai_prices.data",
    "granian.cli",
    "kombu.transport.redis",
    "uvloop",
)


class ForksError(Exception):
    """The process that forks the parts is gone."""


# The process


def main() -> None:
    set_title("fw-forks")
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_everything()
    words = serve(control)
    if words:
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def import_everything() -> None:
    """Ends with a sentence where a setting makes no sense."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    from django.core.exceptions import ImproperlyConfigured

    try:
        import django

        django.setup()
        from django.conf import settings
        from django.urls import get_resolver

        from flywheel.celery import app

        for module in IMPORTED:
            import_module(module)
        for middleware in settings.MIDDLEWARE:  # not made yet: it reads the static files
            import_module(middleware.rpartition(".")[0])
        app.loader.import_default_modules()
        app.finalize()
        _ = get_resolver().url_patterns
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    gc.collect()
    gc.freeze()


def serve(control: socket.socket) -> list[str]:
    """Answers requests until the other end closes. In a fork: the words of its program."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not message:
            return []
        request = json.loads(message)
        if "poll" in request:
            answer = _status(request["poll"])
        else:
            answer = os.fork()
            if not answer:
                control.close()
                _become(descriptors[0], request)
                if request["part"]:
                    require_schema()
                return request["start"]
            os.close(descriptors[0])
        control.send(json.dumps(answer).encode())


def _status(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(output: int, request: dict[str, Any]) -> None:
    """What a new process of its own would have: session, signals, output, title."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_with_parent(request["end_with"])
    priority.start(request["part"])
    name_connections(request["part"] or "prepare")
    set_title(request["title"])
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)


def set_title(text: str) -> None:
    """What `ps -o comm`, `top` and /proc/…/comm say of this process: the first 15 bytes."""
    LIBC.prctl(PR_SET_NAME, text.encode())


# For whoever starts it


class Forks:
    """The process that forks, and the requests to it. Its output is this process's."""

    def __init__(self, environment: dict[str, str], held: int | None = None) -> None:
        """`held`: a descriptor that it and its forks keep open while they live."""
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flywheel.forks", str(other.fileno())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno(), *([] if held is None else [held])],
                start_new_session=True,
            )

    def start(
        self, words: list[str], *, title: str, output: int, end_with: int, part: str = ""
    ) -> Fork:
        """Forks a part that writes to the descriptor. Raises ForksError."""
        request = {"start": words, "title": title, "end_with": end_with, "part": part}
        return Fork(self, self.ask(request, output))

    def ask(self, request: dict[str, Any], *descriptors: int) -> Any:
        """Raises ForksError where the process is gone."""
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                answer = self._control.recv(MESSAGE_BYTES)
            except OSError as error:
                raise ForksError(str(error)) from error
        if not answer:
            raise ForksError(f"Flywheel did not start (status {self._process.wait()}).")
        return json.loads(answer)

    def is_gone(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._control.close()


@dataclass
class Fork:
    """A part, with what the supervisor needs of a Popen."""

    forks: Forks
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self.forks.ask({"poll": self.pid})
            except ForksError:  # the kernel has signalled it
                self.returncode = -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float = float("inf")) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.02)
        return status


if __name__ == "__main__":
    main()
