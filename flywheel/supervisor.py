"""All the processes of one machine under one roof: web, one worker a queue, beat. Used by `up` and
`demo`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
from django.conf import settings

from flywheel import embedded, interrupts
from flywheel.orphans import end_with_parent
from flywheel.processes import NAMES, STOP_SIGNAL, command

COLOURS = {
    "web": "36",
    "endpoint": "96",
    "default": "32",
    "ingest": "37",
    "eval": "34",
    "train": "35",
    "serve": "31",
    "beat": "33",
}
UNSHOWN_LINES = 5_000  # wait for the terminal; more are only in the log
STOP_PATIENCE_S = 40.0
QUIET = "ignore:You're running the worker"  # as root, three times at each start


class StackError(Exception):
    """A stack that cannot start; the message says what to do."""


@dataclass
class Program:
    """One process of the stack."""

    name: str
    command: list[str]
    stop_signal: int = signal.SIGTERM
    process: subprocess.Popen | None = None
    failures: int = 0
    retry_at: float = 0.0
    started_at: float = 0.0


def require_free_port(host: str, port: int) -> None:
    """Raises StackError if something listens there already."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StackError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Stop what uses it, or choose"
                " another with --port."
            ) from error


def free_port_after(host: str, port: int) -> int:
    """Of the endpoint: usually the next one. Raises StackError if none of some is free."""
    last = min(port + 20, 65_535)
    for found in range(port + 1, last + 1):
        with contextlib.suppress(StackError):
            require_free_port(host, found)
            return found
    raise StackError(
        f"No port from {port + 1} to {last} is free for the endpoint. Choose another with --port."
    )


def claim_data_folder(data: Path, url: str) -> int:
    """A lock that one stack has while it lives; the kernel drops that of a killed one. Raises
    StackError that names the other if a stack works on this data folder already.
    """
    data.mkdir(parents=True, exist_ok=True)
    path = data / "stack.lock"
    try:
        held = embedded.lock_patiently(path)
    except BlockingIOError as error:
        other = path.read_text().strip() or "another process"
        raise StackError(
            f"Flywheel already runs with the data folder {data}: {other}. Two on one folder would"
            " run every scheduled job twice. Stop that one first, or name another folder with"
            " FLYWHEEL_DATA_DIR."
        ) from error
    os.ftruncate(held, 0)
    os.write(held, f"{url}, process {os.getpid()}".encode())
    return held


class Stack:
    """Starts the processes, keeps them running, shows their output line by line, and stops all of
    them.
    """

    def __init__(self, host: str, port: int, *, quiet: bool = False) -> None:
        self.host, self.port, self.quiet = host, port, quiet
        self.endpoint_port = free_port_after(host, port)
        self.programs = [
            Program(name, self._command(name), STOP_SIGNAL.get(name, signal.SIGTERM))
            for name in NAMES
        ]
        self.logs = Path(settings.FLYWHEEL_DATA_DIR) / "logs"
        self.stopping = threading.Event()
        self.interrupted = self.forking = False
        self._lines: queue.Queue[str] = queue.Queue(UNSHOWN_LINES)
        threading.Thread(target=self._print, daemon=True).start()
        self._keeper: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def endpoint_url(self) -> str:
        return f"{self.url.rpartition(':')[0]}:{self.endpoint_port}"

    def _command(self, name: str) -> list[str]:
        port = self.endpoint_port if name == "endpoint" else self.port
        return [sys.executable, "-m", *command(name, host=self.host, port=port)]

    def heed_signals(self) -> None:
        """The signals that end a program (`interrupts.heed`) raise KeyboardInterrupt in the main
        thread. One that comes while it forks is raised after that: Python prints an exception in a
        callback at the fork, and goes on.
        """
        interrupts.heed(self._interrupt)

    def _interrupt(self) -> None:
        self.interrupted = True
        if not self.forking:
            raise KeyboardInterrupt

    def _check_interrupted(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Raises StackError if the port is taken."""
        require_free_port(self.host, self.port)
        self.logs.mkdir(parents=True, exist_ok=True)
        for program in self.programs:
            self.forking = True
            self._start(program)
            self.forking = False
            self._check_interrupted()
        self._keeper = threading.Thread(target=self._keep_running, daemon=True)
        self._keeper.start()

    def _start(self, program: Program) -> None:
        program.process = subprocess.Popen(
            program.command,
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Beat's handler asks the database: a second signal meanwhile waits forever for the
            # first one's connection.
            preexec_fn=end_with_parent(
                signal.SIGKILL if program.name == "beat" else program.stop_signal
            ),
            env={
                "MALLOC_ARENA_MAX": "2",
                "FLYWHEEL_URL": self.url,
                "FLYWHEEL_ENDPOINT_URL": self.endpoint_url,
            }
            | os.environ
            | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": QUIET},
        )
        program.started_at = time.monotonic()
        threading.Thread(
            target=self._show, args=[program.name, program.process], daemon=True
        ).start()

    def _show(self, name: str, process: subprocess.Popen) -> None:
        log = self.logs / f"{name}.log"
        assert process.stdout is not None
        with log.open("ab") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()
                if not self.quiet:
                    self.say(name, line.decode(errors="replace").rstrip())

    def say(self, name: str, text: str) -> None:
        colour = COLOURS.get(name, "0") if sys.stdout.isatty() else ""
        label = f"\x1b[{colour}m{name:>8}\x1b[0m" if colour else f"{name:>8}"
        with contextlib.suppress(queue.Full):  # what is not shown is in the log
            self._lines.put_nowait(f"{label} | {text}")

    def _print(self) -> None:
        """Apart from all that keeps the processes running: a terminal that is stopped (Ctrl-S, `|
        less`) blocks.
        """
        while True:
            line = self._lines.get()
            with contextlib.suppress(OSError):
                print(line, flush=True)

    def _keep_running(self) -> None:
        """A process that ends is started again, after a wait that grows while it keeps ending."""
        while not self.stopping.wait(0.5):
            embedded.revive()
            now = time.monotonic()
            for program in self.programs:
                if program.process is not None and program.process.poll() is not None:
                    program.failures = 0 if now - program.started_at > 60 else program.failures + 1
                    wait = min(30.0, 2.0**program.failures)
                    self.say(
                        program.name,
                        f"ended with status {program.process.returncode}; again in {wait:.0f} s",
                    )
                    program.process, program.retry_at = None, now + wait
                elif program.process is None and now >= program.retry_at:
                    self._start(program)

    def wait_healthy(self, patience_s: float = 300.0) -> None:
        """Returns once /healthz says 200. Raises StackError naming the part that is not up."""
        deadline, answer = time.monotonic() + patience_s, "no answer"
        while time.monotonic() < deadline:
            self._check_interrupted()
            try:
                response = httpx2.get(f"{self.url}/healthz", timeout=5)
                if response.status_code == 200:
                    return
                answer = response.text
            except httpx2.HTTPError as error:
                answer = str(error)
            time.sleep(0.3)
        raise StackError(
            f"Not all is up after {patience_s:.0f} s: {answer}. Read"
            f" {settings.FLYWHEEL_DATA_DIR}/logs."
        )

    def serve_forever(self) -> None:
        """Until a signal ends it (`heed_signals`)."""
        with contextlib.suppress(KeyboardInterrupt):
            while not self.interrupted:
                time.sleep(1.0)
        self.stop()

    def stop(self) -> None:
        """Asks every process to stop; kills what does not."""
        self.stopping.set()
        if self._keeper is not None:
            self._keeper.join()
        running = []
        for program in self.programs:
            if program.process and program.process.poll() is None:
                program.process.send_signal(program.stop_signal)
                running.append(program.process)
        deadline = time.monotonic() + STOP_PATIENCE_S
        for process in running:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        while not self._lines.empty() and time.monotonic() < deadline:
            time.sleep(0.05)
