"""The parent of GEPA's process: starts it, answers its questions, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from workers.lib.errors import JobError

MAX_LINE = 64 * 1024 * 1024
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
    process = await _start(python, folder)
    assert process.stdin and process.stdout
    try:
        await _write(process, start)
        while line := await process.stdout.readline():
            said = json.loads(line)
            if said.get("tell") == "end":
                return
            if "tell" in said:
                on_message(said)
            else:
                await _write(process, await answer(said))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    raise JobError("GEPA ended without a result; the job's stderr says why.")


async def _start(python: str, folder: str) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            python,
            "-m",
            "workers.lib.prompt_search.library",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=folder,
            env=ENVIRONMENT | {"PYTHONPATH": folder},
            limit=MAX_LINE,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        raise JobError(
            f"GEPA's Python {python} cannot be started: {error.strerror}. Install it with “make"
            " gepa”."
        ) from error


async def _write(process: asyncio.subprocess.Process, line: dict[str, Any]) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(line).encode() + b"\n")
    with contextlib.suppress(ConnectionError):  # its end is noticed when the next line is read
        await process.stdin.drain()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
