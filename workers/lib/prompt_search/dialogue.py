"""The parent of GEPA's process: starts it, answers its questions, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import signal
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

from workers.lib.errors import JobError

PR_SET_PDEATHSIG = 1
# A fixed hash seed makes sets iterate in the same order, so that a resumed search asks the same
# questions. It gets no key and no address.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
}
Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Library:
    """GEPA's process, which searches from `start` while this is open. Each question that is read
    must be answered before the next message is read.
    """

    def __init__(self, python: str, folder: str, start: dict[str, Any]) -> None:
        self._python, self._folder, self._start = python, folder, start

    def __enter__(self) -> Library:
        """Raises JobError."""
        try:
            self._process = subprocess.Popen(
                [self._python, "-m", "workers.lib.prompt_search.library"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=self._folder,
                env=ENVIRONMENT | {"PYTHONPATH": self._folder},
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            raise JobError(
                f"GEPA's Python {self._python} cannot be started: {error.strerror}. Install it with"
                " “make gepa”."
            ) from error
        self.answer(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def read(self) -> dict[str, Any] | None:
        """The next message, a question if it has “ask”; None once the search has ended. Raises
        JobError if the library fails.
        """
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise JobError("GEPA ended without a result; the job's stderr says why.")
        message = json.loads(line)
        return None if message.get("tell") == "end" else message

    def answer(self, answer: dict[str, Any]) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # its end is noticed when the next line is read
            self._process.stdin.write(json.dumps(answer).encode() + b"\n")
            self._process.stdin.flush()


async def converse(
    python: str,
    folder: str,
    start: dict[str, Any],
    answer: Answer,
    on_message: Callable[[dict], None],
) -> None:
    """Run until the library has ended its search. `answer` gets each of its questions, `on_message`
    all other messages; an error in either ends it. Raises JobError if the library fails.
    """
    with Library(python, folder, start) as library:
        while (message := await asyncio.to_thread(library.read)) is not None:
            if "tell" in message:
                on_message(message)
            else:
                library.answer(await answer(message))


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
