"""The warm parent: serves one request after another, runs each in a fork of itself, and cleans up
afterwards.

In both directions a message is four bytes of length, big endian, and JSON.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

import child
import kernel
from guards import Guards

RESULT_BYTES = 1 << 20


def receive(handle: int) -> dict | None:
    """The next message; None if the other side has closed the connection."""
    head = _exactly(handle, 4)
    body = _exactly(handle, struct.unpack(">I", head)[0]) if head else None
    return json.loads(body) if body else None


def _exactly(handle: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        piece = os.read(handle, count - len(parts))
        if not piece:
            return None
        parts += piece
    return bytes(parts)


def send(handle: int, message: dict) -> None:
    body = json.dumps(message).encode()
    data = struct.pack(">I", len(body)) + body
    while data:
        data = data[os.write(handle, data) :]


class Run:
    """One request: its pipes, its process, its output."""

    def __init__(self, request: dict, guards: Guards, control: int) -> None:
        self.request, self.guards, self.control = request, guards, control
        self.nonce = secrets.token_hex(16).encode()
        self.out = {"stdout": bytearray(), "stderr": bytearray(), "result": bytearray()}
        self.reason = ""

    def start(self) -> None:
        pipes = {name: os.pipe() for name in ("stdin", *self.out)}
        self.pid = os.fork()
        if self.pid == 0:
            self._become(pipes)
        os.close(pipes["stdin"][0])
        self.input = pipes["stdin"][1]
        self.readers = {pipes[name][0]: name for name in self.out}
        for name in self.out:
            os.close(pipes[name][1])
        for handle in (self.input, *self.readers):
            os.set_blocking(handle, False)

    def _become(self, pipes: dict[str, tuple[int, int]]) -> None:
        """The child: keep only its three streams and the result's, put on all guards, then run the
        code.
        """
        try:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            ends = (pipes["stdin"][0], pipes["stdout"][1], pipes["stderr"][1], pipes["result"][1])
            high = [
                os.dup(os.dup(end)) for end in ends
            ]  # avoids the numbers that they will be put on
            for number, handle in enumerate(high):
                if handle != number:
                    os.dup2(handle, number, inheritable=number < 3)
            os.closerange(4, 1024)
            os.chdir(self.guards.scratch)
            self.guards.hold(self.request["limits"])
        except BaseException:
            os.write(3, b"guard" + child.details().encode())
            os._exit(70)
        child.answer(self.request, 3, self.nonce)

    def watch(self) -> int:
        """Feed and read until the end, the time limit or the output limit; return the exit
        status.
        """
        end = time.monotonic() + self.request["limits"]["seconds"]
        feed = self.request.get("stdin", "").encode()
        over = self._over()
        while not self.reason and not self._ended():
            left = end - time.monotonic()
            if left <= 0:
                self.reason = "time"
                break
            writers = [self.input] if self.input >= 0 else []
            wait = min(left, 0.5 if over else 0.005)
            ready, writable, _ = select.select(
                [*self.readers, self.control, *over], writers, [], wait
            )
            if self.control in ready:  # nothing is sent during a run, so the other side has gone
                os.kill(self.pid, signal.SIGKILL)
                os._exit(0)
            feed = self._feed(feed) if writable else feed
            for handle in ready:
                if handle in self.readers:
                    self._read(handle)
        for handle in over:
            os.close(handle)
        return self._end()

    def _over(self) -> list[int]:
        """A descriptor that becomes readable when the child ends; none if the kernel does not
        support this.
        """
        try:
            return [os.pidfd_open(self.pid)]
        except OSError:
            return []

    def _feed(self, feed: bytes) -> bytes:
        try:
            feed = feed[os.write(self.input, feed) :] if feed else feed
        except OSError:
            feed = b""
        if not feed:
            os.close(self.input)
            self.input = -1
        return feed

    def _read(self, handle: int) -> None:
        name = self.readers[handle]
        piece = os.read(handle, 65536)
        if not piece:
            os.close(handle)
            del self.readers[handle]
            return
        self.out[name] += piece
        said = len(self.out["stdout"]) + len(self.out["stderr"])
        if said > self.request["limits"]["output"] or len(self.out["result"]) > RESULT_BYTES:
            self.reason = "output"

    def _ended(self) -> bool:
        """Whether the child itself has ended; other processes that hold its pipes open do not
        count.
        """
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _end(self) -> int:
        """End everything of this run: the child, its process group, and everything in our own pid
        namespace.
        """
        if not self._ended():
            os.kill(self.pid, signal.SIGKILL)
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.guards.in_force["pid_namespace"]:
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        for handle in list(self.readers):
            while not self.reason and handle in self.readers:
                try:
                    self._read(handle)
                except BlockingIOError:
                    break
        for handle in (*self.readers, *([self.input] if self.input >= 0 else [])):
            os.close(handle)
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0 if self.guards.in_force["pid_namespace"] else os.WNOHANG)[0]:
                pass
        return os.waitstatus_to_exitcode(status)

    def result(self, code: int) -> dict:
        """The message for the outside. A result only counts if it is nonce + JSON and nothing
        more.
        """
        said = bytes(self.out["result"])
        found: dict = {}
        if said.startswith(self.nonce):
            with suppress(ValueError):
                found = json.loads(said[len(self.nonce) :])
        guard = (
            said[5:].decode(errors="replace") if code == 70 and said.startswith(b"guard") else ""
        )
        if guard:
            reason = "error"
        elif self.reason:
            reason = self.reason
        elif code == -signal.SIGXCPU:
            reason = "time"
        elif code < 0:
            reason = "killed"
        else:
            reason = found.get("reason", "ok")
        limit = self.request["limits"]["output"]
        texts = {
            name: bytes(self.out[name][:limit]).decode(errors="replace")
            for name in ("stdout", "stderr")
        }
        return {
            "code": code,
            "reason": reason,
            "result": found if not self.reason else {},
            "guard": guard,
        } | texts


def clean(scratch: str) -> None:
    """Empty the scratch folder; links are removed, never followed. Raises OSError if something
    cannot be removed.
    """
    for entry in list(Path(scratch).iterdir()):
        if entry.is_symlink() or not entry.is_dir():
            entry.unlink()
            continue
        entry.chmod(0o700)
        for folder, names, _ in os.walk(entry):
            for path in (Path(folder) / name for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(entry)


def put(scratch: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        target = Path(scratch) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def serve(guards: Guards, incoming: int, outgoing: int) -> None:
    """Send the guards as a greeting, then answer requests until the other side closes the
    connection.
    """
    send(outgoing, {"guards": guards.report(), "pid": os.getpid()})
    while request := receive(incoming):
        started = time.monotonic()
        answer, last = (
            {"code": 70, "reason": "error", "result": {}, "guard": "", "stdout": "", "stderr": ""},
            False,
        )
        try:
            put(guards.scratch, request.get("files", {}))
            run = Run(request, guards, incoming)
            run.start()
            answer = run.result(run.watch())
        except OSError as error:
            answer["stderr"] = str(error)
        try:
            clean(guards.scratch)
        except OSError:  # the folder cannot be emptied, so the next run gets a new server
            last = True
        send(outgoing, answer | {"seconds": time.monotonic() - started, "last": last})
        if last:
            return
