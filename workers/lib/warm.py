"""Programs that are started with their imports done: a process that has imported torch and what
goes with it, and has computed nothing, forks each. `python -m workers.grpo` spends 5 s of processor
time before it begins; a fork begins at once, and shares the memory of what is imported.

    warm = Warm(environment)
    child = warm.popen([sys.executable, "-m", "workers.grpo", spec], env=…, stdout=PIPE)

`child` is a `Popen`: pipes, environment, signals and the exit status are those of a program. The
process with the imports is begun when it is first wanted, and ends with the process that began it,
or when nothing has run for a while; its programs end with it. Neither CUDA nor torch's threads
would go on in a fork, so it touches neither. Light: the standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fcntl import F_DUPFD, fcntl
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from workers.lib.gpus import has_gpu
from workers.lib.guard import LIBC, end_with_parent

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = (
    "workers.grpo",
    "workers.sft",
    "workers.evaluate",
    "workers.model_server",
    "datasets",
    "trl.trainer.sft_trainer",
)
IDLE_S = 120.0
PATIENCE_S = 120.0  # with its imports
MOST_BYTES = 1 << 17  # of a request: the environment, above all
MOST_FILES = 16
HIGH = 500  # numbers of files from here on are not passed to programs
PR_SET_NAME = 15
Popen = subprocess.Popen
Command = list[str]


# For whoever starts programs


class Warm:
    """Starts programs from a process with this environment, which ends after `idle_s` seconds
    without one. It may be used by several threads, and by forks of the process that made it."""

    def __init__(self, environment: Mapping[str, str], idle_s: float = IDLE_S) -> None:
        self.environment, self.idle_s = dict(environment), idle_s
        self.lock = threading.Lock()
        self.control: socket.socket | None = None
        self.process: Popen | None = None

    def prepare(self, *, imports: bool = True) -> None:
        """Begins the process before it is needed; without `imports` it imports when it is."""
        with self.lock:
            self._begin()
            if imports:
                self.control.send(b"{}")  # type: ignore[union-attr]

    def close(self) -> None:
        """Ends it and its programs."""
        with self.lock:
            if self.control is not None:
                self.control.close()
                self.control = None
        if self.process is not None:
            self.process.wait()

    def popen(self, command: Command, **options: Any) -> Popen:
        """In place of `Popen`. What cannot be started warm is started as usual: where there is a
        GPU, nothing is, since nobody knows which import of another version may touch it. Raises
        OSError."""
        if command[:2] == [sys.executable, "-m"] and not has_gpu():
            with contextlib.suppress(OSError):
                return Program(self, command, **options)
        return Popen(command, **options)

    def ask(self, request: dict[str, Any], files: list[int]) -> tuple[socket.socket, int]:
        """(what will say the exit status, the process id). Raises OSError."""
        for last in (False, True):
            with self.lock:
                if self.control is None or last:
                    self._begin()
                control = self.control
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with there:
                    message = json.dumps(request).encode()
                    socket.send_fds(control, [message], [there.fileno(), *files])  # type: ignore[list-item]
                here.settimeout(PATIENCE_S)
                if answer := here.recv(MOST_BYTES):
                    here.settimeout(None)
                    return here, _pid(answer)
            except ConnectionError:
                pass  # it had nothing to do, and has ended
            except BaseException:
                here.close()
                raise
            here.close()
        raise ConnectionError("No program can be started warm.")

    def _begin(self) -> None:
        if self.process is not None:
            self.process.poll()
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = Popen(
                [sys.executable, "-m", __name__, str(other.fileno()), str(self.idle_s)],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )


def _pid(answer: bytes) -> int:
    """Raises OSError where no process could be made."""
    if pid := json.loads(answer):
        return pid
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


class Program(Popen):
    """A program that is not this process's own child."""

    def __init__(self, warm: Warm, command: Command, **options: Any) -> None:
        self.warm, self.alone = warm, options.get("start_new_session", False)
        super().__init__(command, **options)

    def _execute_child(self, args: Command, *options: Any) -> None:
        _, _, _, passed, cwd, env, _, _, _, *pipes = options[:15]
        files = _files(pipes) | {file: file for file in passed}
        request = {
            "arguments": args[2:],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(env or os.environ),
            "files": list(files),
            "alone": self.alone,
        }
        self.connection, self.pid = self.warm.ask(request, list(files.values()))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags == os.WNOHANG and not select.select([self.connection], [], [], 0)[0]:
            return 0, 0
        status = self.connection.recv(MOST_BYTES)
        return self.pid, json.loads(status) if status else signal.SIGKILL  # it went with its parent

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            ended, status = self._try_wait(os.WNOHANG)
            if ended:
                self._handle_exitstatus(status)
        return self.returncode


def again(arguments: Command, **options: Any) -> Popen:
    """`python -m …` as another process of this program: a fork, if its imports are done. Call it
    before anything is computed."""
    kind = Fork if "torch" in sys.modules else Popen
    return kind([sys.executable, "-m", *arguments], **options)


class Fork(Popen):
    """A program that is forked from this process."""

    def _execute_child(self, args: Command, *options: Any) -> None:
        _, prepare, _, passed, cwd, env, _, _, _, *pipes = options[:15]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                files = _files(pipes)
                for at, file in files.items():
                    os.dup2(file, at)
                if prepare:
                    prepare()
                _become(args[2:], str(cwd or Path.cwd()), dict(env or os.environ), passed)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            _run_and_exit(args[2])
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _files(pipes: list[int]) -> dict[int, int]:
    """The files that a program has as its first three."""
    given = zip((0, 1, 2), (pipes[0], pipes[3], pipes[5]), strict=True)
    return {at: at if file == -1 else file for at, file in given}


# The process with the imports


@dataclass
class Request:
    """A program, and its files here."""

    arguments: list[str]
    cwd: str
    env: dict[str, str]
    files: dict[int, int]
    alone: bool


def main() -> None:
    request = serve(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]))
    if request is not None:
        runpy.run_module(request.arguments[0], run_name="__main__", alter_sys=True)


def serve(control: socket.socket, idle_s: float) -> Request | None:
    """Forks what it is asked for. In a fork: its program, which it has become."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by what tells that it has ended
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    while ready := waiting.poll(None if running else idle_s * 1000):
        for file, _ in ready:
            if file in running:
                pid, connection = running.pop(file)
                waiting.unregister(file)
                os.close(file)
                with connection, contextlib.suppress(OSError):
                    connection.send(json.dumps(os.waitpid(pid, 0)[1]).encode())
                continue
            message, files, *_ = socket.recv_fds(control, MOST_BYTES, MOST_FILES)
            if not message:
                return None
            import_everything()
            if not files:
                continue
            request = json.loads(message)
            request["files"] = dict(zip(request["files"], files[1:], strict=True))
            try:
                pid = os.fork()
            except OSError:
                os.write(files[0], b"0")
                for passed in files:
                    os.close(passed)
                continue
            if not pid:
                control.detach()
                return _program(files[0], Request(**request))
            for passed in files[1:]:
                os.close(passed)
            tells = os.pidfd_open(pid)
            running[tells] = pid, socket.socket(fileno=files[0])
            waiting.register(tells, select.POLLIN)
    return None


def import_everything() -> None:
    if "torch" not in sys.modules:
        for name in IMPORTS:
            import_module(name)
        gc.collect()
        gc.freeze()


def _program(connection: int, request: Request) -> Request:
    end_with_parent(signal.SIGKILL)
    if request.alone:
        os.setsid()
    os.write(connection, json.dumps(os.getpid()).encode())
    away = [fcntl(file, F_DUPFD, HIGH) for file in request.files.values()]
    for at, file in zip(request.files, away, strict=True):
        os.dup2(file, at)
    _become(request.arguments, request.cwd, request.env, request.files)
    return request


def _become(arguments: Command, cwd: str, env: dict[str, str], kept: Iterable[int]) -> None:
    """What a new Python would be that is run with `-m` and these arguments."""
    _leave_all_but({0, 1, 2, *kept})
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LIBC.prctl(PR_SET_NAME, arguments[0].rpartition(".")[2].encode())
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _written(1, "strict"), _written(2, "backslashreplace")
    sys.argv = arguments
    logging.root.handlers.clear()
    sys.modules["numpy"].random.seed()  # it would go on where every other fork does
    if threads := env.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))


def _written(file: int, errors: str) -> io.TextIOWrapper:
    raw = open(file, "wb", buffering=0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)


def _run_and_exit(program: str) -> NoReturn:
    """Whoever forked this process goes on in another: nothing of theirs is ended here."""
    status = 1
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _leave_all_but(kept: set[int]) -> None:
    """Other files are nobody's. They are not closed: whatever still writes to one shall not write
    to a new one of its number."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in kept:
            os.dup2(nowhere, int(name))


if __name__ == "__main__":
    from workers.lib.warm import main as begin  # one copy of this module, also in programs

    begin()
