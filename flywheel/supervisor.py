"""All the processes of one machine under one roof: web, endpoint, workers, beat. Used by `up` and
`demo`. It imports no Django: what does is forked (flywheel.forks).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flywheel import embedded, interrupts, logs, metrics
from flywheel.forks import Fork, Forks, ForksError
from flywheel.log_files import LogFile, write_lines
from flywheel.private import make_data_folder
from flywheel.processes import ENDPOINT_STOPS_S, PARTS, fork_command
from flywheel.progress import doing

COLOURS = {
    "web": "36",
    "endpoint": "96",
    "storing": "34",
    "default": "32",
    "ingest": "37",
    "judge": "35",
    "light": "33",
}
UNSHOWN_LINES = 5_000  # wait for the terminal; more are only in the log
STOP_PATIENCE_S = {"web": 8.0, "endpoint": ENDPOINT_STOPS_S + 1.0}
PATIENT_S = 40.0  # with other parts
ENDPOINT_PORTS = 20  # after that of the web server, of which the endpoint gets the first free one
STOPS_S = 120.0  # within which a stack has stopped, and its services
STOPPING = ", which is stopping"
LAST = "storing"  # what the endpoint still answers while it stops is stored, too
QUIET = "ignore:You're running the worker"  # as root, three times at each start


class StackError(Exception):
    """A stack that cannot start; the message says what to do."""


@dataclass
class Program:
    """One process of the stack."""

    name: str
    command: list[str]
    process: Fork | None = None
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
    last = min(port + ENDPOINT_PORTS, 65_535)
    for found in range(port + 1, last + 1):
        with contextlib.suppress(StackError):
            require_free_port(host, found)
            return found
    raise StackError(
        f"No port from {port + 1} to {last} is free for the endpoint. Choose another with --port."
    )


def claim_data_folder(data: Path, url: str) -> int:
    """A lock that one stack and its processes hold, and that the kernel drops once all of them are
    gone. One that is stopping is waited for, and so are the processes of one that was killed.
    Raises StackError that names the other if a stack works on this data folder already.
    """
    make_data_folder(data)
    path = data / "stack.lock"
    try:
        held = embedded.lock_patiently(path)
    except BlockingIOError:
        held = _wait_for_other(path)
    os.ftruncate(held, 0)
    os.write(held, f"{url}, process {os.getpid()}".encode())
    return held


def _wait_for_other(path: Path) -> int:
    """The lock, once the stack that has it has stopped. Raises StackError if it is not stopping."""
    deadline = time.monotonic() + STOPS_S
    while _is_ending(other := path.read_text().strip() or "another process"):
        with contextlib.suppress(BlockingIOError), doing(f"Waiting for {other}"):
            return embedded.lock_within(path, 5.0)
        if time.monotonic() > deadline:
            raise StackError(
                f"Flywheel with the data folder {path.parent} has been stopping for"
                f" {STOPS_S:.0f} s: {other}. Wait for it, or kill that process, and start again."
            )
    raise StackError(
        f"Flywheel already runs with the data folder {path.parent}: {other}. Two on one folder"
        " would run every scheduled job twice. Stop that one first, or name another folder with"
        " FLYWHEEL_DATA_DIR."
    )


def _is_ending(stack: str) -> bool:
    """Whether a stack, as its lock file describes it, says so or was killed."""
    pid = stack.rpartition(" ")[2]
    return STOPPING in stack or (pid.isdigit() and not Path(f"/proc/{pid}").exists())


def say_stopping(claimed: int) -> None:
    """To whoever wants the data folder next."""
    text = os.pread(claimed, 1000, 0).decode()
    if STOPPING not in text:
        os.pwrite(claimed, f"{text}{STOPPING}".encode(), 0)


def url_of(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{host}:{port}"


class Stack:
    """Starts the processes, keeps them running, shows their output line by line, and stops all of
    them.
    """

    def __init__(
        self, host: str, port: int, *, quiet: bool = False, claimed: int | None = None
    ) -> None:
        """`claimed`: the lock of the data folder."""
        self.host, self.port, self.quiet, self.claimed = host, port, quiet, claimed
        self.endpoint_port = free_port_after(host, port)
        self.programs = [
            Program(part, self._command(part, number))
            for part, processes in PARTS.items()
            for number in range(1, processes + 1)
        ]
        self.logs = embedded.data_dir() / "logs"
        self.log_files: dict[str, LogFile] = {}
        self._opening = threading.Lock()
        self.counts = metrics.new_folder()
        self.forks: Forks | None = None
        self.stopping = threading.Event()
        self.interrupted = self.forking = False
        self._lines: queue.Queue[str] = queue.Queue(UNSHOWN_LINES)
        threading.Thread(target=self._print, daemon=True).start()
        self._keeper: threading.Thread | None = None

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)

    @property
    def endpoint_url(self) -> str:
        return f"{self.url.rpartition(':')[0]}:{self.endpoint_port}"

    def _command(self, part: str, number: int) -> list[str]:
        port = self.endpoint_port if part == "endpoint" else self.port
        return fork_command(part, number, host=self.host, port=port)

    def heed_signals(self) -> None:
        """The signals that end a program (`interrupts.heed`) raise KeyboardInterrupt in the main
        thread. One that comes while it forks is raised after that.
        """
        interrupts.heed(self._interrupt)

    def _interrupt(self) -> None:
        self.interrupted = True
        if not self.forking:
            raise KeyboardInterrupt

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """For a request to the process that forks: an answer that nobody reads would be taken for
        the next one's."""
        self.forking = True
        try:
            yield
        finally:
            self.forking = False
        self._check_interrupted()

    def _check_interrupted(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Raises StackError if the port is taken."""
        require_free_port(self.host, self.port)
        self.logs.mkdir(parents=True, exist_ok=True)
        for program in self.programs:
            with self._uninterrupted():
                self._start(program)
        self._keeper = threading.Thread(target=self._keep_running, daemon=True)
        self._keeper.start()

    def prepare(self) -> None:
        """`manage.py prepare`, which shows what it did. Raises StackError if it failed."""
        with self._uninterrupted(), doing("Loading Flywheel"):
            prepared = self._start_prepare()
        while prepared.returncode is None:
            time.sleep(0.02)
            with self._uninterrupted():
                prepared.poll()
        if prepared.returncode:
            raise StackError("Nothing was started.")

    def _start_prepare(self) -> Fork:
        output, written = os.pipe() if logs.is_json() else (-1, os.dup(1))
        try:
            started = self._forks().start(
                ["django", "prepare"], title="fw-prepare", output=written, end_with=signal.SIGTERM
            )
        finally:
            os.close(written)
        if output >= 0:
            threading.Thread(target=self._tell, args=[output], daemon=True).start()
        return started

    def _tell(self, output: int) -> None:
        """What it prints is not kept in a log: the first start's has a password and a key."""
        with open(output, "rb") as lines:
            for line in lines:
                self.say("prepare", line.decode(errors="replace").rstrip())

    def _forks(self) -> Forks:
        if self.forks is None or self.forks.is_gone():
            environment = {
                "MALLOC_ARENA_MAX": "2",
                "FLYWHEEL_URL": self.url,
                "FLYWHEEL_ENDPOINT_URL": self.endpoint_url,
                metrics.VARIABLE: self.counts,
            }
            self.forks = Forks(
                environment | os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": QUIET},
                self.claimed,
            )
        return self.forks

    def _start(self, program: Program) -> None:
        output, written = os.pipe()
        try:
            program.process = self._forks().start(
                program.command,
                title=f"fw-{program.name}",
                output=written,
                end_with=signal.SIGTERM if program.name == LAST else signal.SIGKILL,
                part=program.name,
            )
        except ForksError:
            os.close(output)
            raise
        finally:
            os.close(written)
        program.started_at = time.monotonic()
        threading.Thread(target=self._show, args=[program.name, output], daemon=True).start()

    def _show(self, name: str, output: int) -> None:
        def show(line: bytes) -> None:
            if not self.quiet:
                self.say(name, line.decode(errors="replace").rstrip())

        write_lines(output, self._log_file(name), name, show)

    def _log_file(self, name: str) -> LogFile:
        """One for all processes of a part."""
        with self._opening:
            if name not in self.log_files:
                self.log_files[name] = LogFile(self.logs / f"{name}.log")
            return self.log_files[name]

    def say(self, name: str, text: str) -> None:
        if logs.is_json():
            return self._put(logs.as_line(text.encode(), name, process=name).decode().rstrip())
        colour = COLOURS.get(name, "0") if sys.stdout.isatty() else ""
        label = f"\x1b[{colour}m{name:>8}\x1b[0m" if colour else f"{name:>8}"
        return self._put(f"{label} | {text}")

    def _put(self, line: str) -> None:
        with contextlib.suppress(queue.Full):  # what is not shown is in the log
            self._lines.put_nowait(line)

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
                    metrics.forget(self.counts, program.process.pid)
                    program.failures = 0 if now - program.started_at > 60 else program.failures + 1
                    wait = min(30.0, 2.0**program.failures)
                    self.say(
                        program.name,
                        f"ended with status {program.process.returncode}; again in {wait:.0f} s",
                    )
                    program.process, program.retry_at = None, now + wait
                elif program.process is None and now >= program.retry_at:
                    with contextlib.suppress(ForksError):
                        self._start(program)

    def wait_healthy(self, patience_s: float = 300.0) -> None:
        """Returns once /healthz says 200. Raises StackError naming the part that is not up."""
        deadline, answer = time.monotonic() + patience_s, ""
        with doing("Starting the web server and the workers", lambda: _missing(answer)):
            while not (answer := self._health()).startswith("200 "):
                if time.monotonic() > deadline:
                    raise StackError(
                        f"Not all is up after {patience_s:.0f} s: {answer}. Read {self.logs}."
                    )
                self._check_interrupted()
                time.sleep(0.1)

    def _health(self) -> str:
        """The status and text of /healthz, or why there is none."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        try:
            with contextlib.closing(
                http.client.HTTPConnection(host.strip("[]"), int(port), timeout=5)
            ) as connection:
                connection.request("GET", "/healthz")
                response = connection.getresponse()
                return f"{response.status} {response.read().decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            return str(error)

    def serve_forever(self) -> None:
        """Until a signal ends it (`heed_signals`)."""
        with contextlib.suppress(KeyboardInterrupt):
            while not self.interrupted:
                time.sleep(1.0)
        self.stop()

    def stop(self) -> None:
        """Asks every process to stop; kills what does not."""
        self.stopping.set()
        if self.claimed is not None:
            say_stopping(self.claimed)
        if self._keeper is not None:
            self._keeper.join()
        for last in (False, True):
            self._stop([program for program in self.programs if (program.name == LAST) == last])
        if self.forks is not None:
            self.forks.close()
        metrics.remove(self.counts)
        deadline = time.monotonic() + PATIENT_S
        while not self._lines.empty() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _stop(self, programs: list[Program]) -> None:
        running = [(program, program.process) for program in programs if program.process]
        for _, process in running:
            process.send_signal(signal.SIGTERM)
        asked_at = time.monotonic()
        for program, process in running:
            deadline = asked_at + STOP_PATIENCE_S.get(program.name, PATIENT_S)
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _missing(health: str) -> str:
    """The parts that are not up in what /healthz answers; "" where it does not answer."""
    try:
        parts = json.loads(health.partition(" ")[2])["parts"]
    except (ValueError, KeyError):
        return ""
    return f"waiting for {', '.join(name for name, is_up in parts.items() if not is_up)}"


@contextmanager
def running_stack(host: str, port: int, *, quiet: bool = False) -> Iterator[Stack]:
    """Migrates, makes the first admin, starts all processes and yields once they are healthy. At
    the end everything is stopped, the embedded services too. Raises StackError for what cannot
    start."""
    claimed = None
    try:
        claimed = claim_data_folder(embedded.data_dir(), url_of(host, port))
        require_free_port(host, port)
        stack = Stack(host, port, quiet=quiet, claimed=claimed)
        stack.heed_signals()
        embedded.hold()
        try:
            stack.prepare()
            stack.start()
            stack.wait_healthy()
            yield stack
        finally:
            stack.stop()
    except (ForksError, embedded.ServiceError) as error:
        raise StackError(str(error)) from error
    finally:
        embedded.stop_unused()
        if claimed is not None:
            os.close(claimed)
