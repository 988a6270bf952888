"""Programs that are started with their imports done. `python -m workers.grpo` spends 6 s of
processor time before it begins; a process that has imported the same, and computed nothing yet
(torch cannot go on in a fork once it has), forks each program instead.

    child = warm.Program(["workers.grpo", spec], stdout=PIPE, env=…)

is a `Popen`: arguments, pipes, environment, signals and the exit status are those of a program. So
are the programs that it starts in turn: they are its children. Within `jobs()`, so are the programs
of jobs.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD, fcntl
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

from workers.lib.guard import end_with_parent

ADDRESS = f"\0flywheel-tests-{os.getpid()}"
IMPORTS = ("workers.grpo", "workers.sft", "workers.evaluate", "workers.model_server", "trl")
MOST_BYTES = 1 << 17  # of a request: the environment, above all
MOST_FILES = 16
HIGH = 500  # numbers of files from here on are not passed to programs
Popen = subprocess.Popen


def begin() -> None:
    """When all tests are collected, and none has run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(ADDRESS)
    listener.listen()
    _fork(lambda: _serve(listener), listener)
    listener.close()


@contextmanager
def jobs() -> Iterator[None]:
    from apps.core import child

    with patch.object(child, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": popen})):
        yield


class Program(Popen):
    """`arguments` are those of `python -m`."""

    def __init__(self, arguments: list[str], **options: Any) -> None:
        self.alone = options.get("start_new_session", False)
        super().__init__([sys.executable, "-m", *arguments], **options)

    def _execute_child(self, args: list[str], *options: Any) -> None:
        _, _, _, passed, cwd, env, _, _, _, *pipes = options[:15]
        files = dict(zip((0, 1, 2), (pipes[0], pipes[3], pipes[5]), strict=True))
        files = {at: at if file == -1 else file for at, file in files.items()}
        files |= {file: file for file in passed}
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.connect(ADDRESS)
        request = {
            "arguments": args[2:],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(env or os.environ),
            "files": list(files),
            "alone": self.alone,
        }
        socket.send_fds(self.connection, [json.dumps(request).encode()], list(files.values()))
        self.pid = json.loads(self.connection.recv(MOST_BYTES))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags == os.WNOHANG and not select.select([self.connection], [], [], 0)[0]:
            return 0, 0
        return self.pid, json.loads(self.connection.recv(MOST_BYTES))

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            ended, status = self._try_wait(os.WNOHANG)
            if ended:
                self._handle_exitstatus(status)
        return self.returncode


def popen(command: list[str], **options: Any) -> Popen:
    """In place of `subprocess.Popen` where the product starts programs of ours."""
    if command[:2] == [sys.executable, "-m"]:
        return Program(command[2:], **options)
    return Popen(command, **options)


class Nested(Popen):
    """What a program starts: other programs are forked from it."""

    def _execute_child(self, args: list[str], *options: Any) -> None:
        if args[:2] != [sys.executable, "-m"]:
            super()._execute_child(args, *options)
            return
        _, prepare, _, passed, cwd, env, _, _, _, *pipes = options[:15]
        self.pid = os.fork()
        if self.pid == 0:
            for at, file in enumerate((pipes[0], pipes[3], pipes[5])):
                if file not in (-1, at):
                    os.dup2(file, at)
            if prepare:
                prepare()
            _become(args[2:], str(cwd or Path.cwd()), dict(env or os.environ), passed)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def _serve(listener: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that follow programs
    while True:
        connection, _ = listener.accept()
        for name in IMPORTS:
            import_module(name)
        _fork(lambda here=connection: _follow(here), connection)
        connection.close()


def _follow(connection: socket.socket) -> None:
    """One program: from the request to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, received, *_ = socket.recv_fds(connection, MOST_BYTES, MOST_FILES)
    request = json.loads(message)
    alone = request.pop("alone")
    pid = os.fork()
    if pid == 0:
        end_with_parent(signal.SIGKILL)
        files = request.pop("files")
        for at, file in zip(files, [fcntl(file, F_DUPFD, HIGH) for file in received], strict=True):
            os.dup2(file, at)
        _become(**request, kept=files)
    if alone:
        os.setpgid(pid, pid)
    for file in received:
        os.close(file)
    connection.send(json.dumps(pid).encode())
    status = os.waitpid(pid, 0)[1]
    connection.send(json.dumps(status).encode())


def _fork(run: Callable[[], object], kept: socket.socket) -> None:
    if os.fork() == 0:
        end_with_parent(signal.SIGKILL)
        _leave_all_but({0, 1, 2, kept.fileno()})
        _end_after(run)


def _become(arguments: list[str], cwd: str, env: dict[str, str], kept: Iterable[int]) -> NoReturn:
    """Python, run with `-m` and these arguments."""
    _leave_all_but({0, 1, 2, *kept})
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin, sys.stdout, sys.stderr = (
        open(at, mode, closefd=False)  # noqa: SIM115
        for at, mode in enumerate("rww")
    )
    sys.argv = arguments
    logging.root.handlers.clear()
    subprocess.Popen = Nested  # type: ignore[misc]
    if threads := env.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    _end_after(lambda: runpy.run_module(arguments[0], run_name="__main__", alter_sys=True))


def _end_after(run: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def _leave_all_but(kept: set[int]) -> None:
    """Other files are nobody's. They are not closed: whatever still writes to one shall not write
    to a new one of its number."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in kept:
            os.dup2(nowhere, int(name))
