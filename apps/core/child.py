"""The child process of a job: how it is started, read, stopped, and what it may know."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from django.conf import settings

from apps.core.events import parse_event
from workers.lib.clients import key_variables
from workers.lib.guard import end_with_parent
from workers.lib.specs.engines import computes
from workers.lib.specs.job import Job as Spec
from workers.lib.typed import plain
from workers.lib.warm import Warm

log = logging.getLogger(__name__)
CANCEL_GRACE_S = 30.0
MAX_LINE = 8 * 1024 * 1024
PIPE_BYTES = 1 << 20  # that a child can write before it has to wait for us
GATHER_S = 0.02  # in which more events come: to be woken for each costs more than to read it
# What the child may know of this process: nothing that opens the database, the broker or a session.
PASSED_ENV = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "HF_HOME",
)
PASSED_PREFIX = "FLYWHEEL_SANDBOX_"


@dataclass
class Child:
    """`result` and `error` are the events that the child ended with."""

    process: subprocess.Popen
    events_fd: int
    stderr_path: Path
    result: dict | None = None
    error: dict | None = None
    tail: bytes = b""
    terminated_at: float | None = None

    def read(self, timeout: float) -> tuple[list[dict], bool]:
        """Events that arrived within `timeout` seconds, and whether the pipe is at its end."""
        ready, _, _ = select.select([self.events_fd], [], [], timeout)
        if not ready:
            return [], False
        time.sleep(GATHER_S)
        chunk = os.read(self.events_fd, PIPE_BYTES)
        *lines, self.tail = (self.tail + chunk).split(b"\n")
        if len(self.tail) > MAX_LINE:
            log.warning(
                "A job's program wrote a line of more than %d bytes; it is dropped", MAX_LINE
            )
            self.tail = b""
        events = [event for event in map(parse_event, lines) if event]
        for event in events:
            if event["type"] == "result":
                self.result = event
            elif event["type"] == "error":
                self.error = event
        return events, not chunk

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def ask_to_stop(self) -> None:
        """SIGTERM first, SIGKILL once the grace is over."""
        now = time.monotonic()
        if self.terminated_at is None:
            self.terminated_at = now
            self.signal(signal.SIGTERM)
        elif now - self.terminated_at > CANCEL_GRACE_S:
            self.signal(signal.SIGKILL)

    def close(self) -> int:
        """Makes sure that nothing of the child is left; returns its exit status."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.signal(signal.SIGKILL)
        os.close(self.events_fd)
        return self.process.returncode

    def last_line_of_stderr(self) -> str:
        """For an end that no event explains."""
        with contextlib.suppress(OSError):
            lines = self.stderr_path.read_text(errors="replace").strip().splitlines()
            return lines[-1][:500] if lines else ""
        return ""


def start(command: Sequence[str], spec_path: Path, spec: Spec, stderr_path: Path) -> Child:
    """Writes the spec and starts `command` with its path. Raises OSError."""
    spec_path.write_text(json.dumps(plain(spec), indent=1))
    read_fd, write_fd = os.pipe()
    with contextlib.suppress(OSError):  # an operator may allow less
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        with stderr_path.open("ab") as stderr:
            process = _popen(command[0], spec)(
                [*command, str(spec_path)],
                cwd=settings.BASE_DIR,
                env=_environment(command[0], spec) | {"FLYWHEEL_EVENTS_FD": str(write_fd)},
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[write_fd],
                start_new_session=True,
                preexec_fn=partial(end_with_parent, signal.SIGKILL),
            )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    return Child(process, read_fd, stderr_path)


def _popen(python: str, spec: Spec) -> Callable[..., subprocess.Popen]:
    """What loads a model here begins with its imports done."""
    warm = settings.FLYWHEEL_WARM_S > 0 and python == sys.executable and computes(spec)
    return _warm().popen if warm else subprocess.Popen


@cache
def _warm() -> Warm:
    return Warm(_environment(sys.executable), settings.FLYWHEEL_WARM_S)


def _environment(python: str, spec: Spec | None = None) -> dict[str, str]:
    """Without a spec, what all programs of ours have."""
    sandbox = (name for name in os.environ if name.startswith(PASSED_PREFIX))
    names = (*PASSED_ENV, *sandbox, *(key_variables(spec) if spec else ()))
    env = {name: os.environ[name] for name in names if name in os.environ}
    if python != sys.executable:
        env.pop("VIRTUAL_ENV", None)  # it runs in another one
    return env | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(settings.BASE_DIR),
    }
