"""A chat server that answers after a fixed time, and cheaply: a protocol on bytes, in a process of
its own. `started` runs one.

A request holds “What is A plus B?”; the answer is the sum, or one too many for every fourth A. It
counts what it is asked, so that all who are measured are measured by the same clock: from the first
question to the last answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

QUESTION = re.compile(rb"What is (\d+) plus (\d+)\?")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
MESSAGE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_760_000_000,
    "model": "scripted",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "SUM"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 30, "completion_tokens": 3, "total_tokens": 33},
}
BEFORE, AFTER = json.dumps(MESSAGE).encode().split(b"SUM")


def question(number: int) -> str:
    return f"What is {number} plus {number % 97}? Answer with the number alone."


def right(number: int) -> str:
    return str(number + number % 97)


@dataclass
class Counted:
    """`seconds` from the first question, at `began` of `time.perf_counter`, to the last answer;
    `together` is the most that were open at a time."""

    questions: int = 0
    began: float = 0.0
    seconds: float = 0.0
    together: int = 0


class _Peer(asyncio.Protocol):
    def __init__(self, counts: _Counts, think_s: float) -> None:
        self.counts, self.think_s, self.data = counts, think_s, b""
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        end = self.data.find(b"\r\n\r\n") + 4
        length = LENGTH.search(self.data, 0, end) if end > 3 else None
        if length is None or len(self.data) < end + int(length[1]):
            return
        asked = QUESTION.findall(self.data, end)[-1]  # examples may stand before it
        self.data = self.data[end + int(length[1]) :]
        self.counts.begin()
        self.loop.call_later(self.think_s, self.answer, int(asked[0]), int(asked[1]))

    def answer(self, a: int, b: int) -> None:
        body = BEFORE + b"%d" % (a + b + (a % 4 == 0)) + AFTER
        self.counts.end()
        self.transport.write(HEAD % len(body) + body)  # type: ignore[attr-defined]


class _Counts:
    def __init__(self) -> None:
        self.found, self.open = Counted(), 0

    def begin(self) -> None:
        self.found.began = self.found.began or time.perf_counter()
        self.open += 1
        self.found.together = max(self.found.together, self.open)

    def end(self) -> None:
        self.open -= 1
        self.found.questions += 1
        self.found.seconds = time.perf_counter() - self.found.began


def _serve(pipe: Connection, think_s: float) -> None:
    """Until the pipe is closed. Sends its port, then what it has counted since whenever something
    is sent.
    """
    counts = _Counts()

    def report() -> None:
        try:
            pipe.recv()
            pipe.send(counts.found)
        except (EOFError, OSError):
            loop.stop()
        counts.__init__()  # type: ignore[misc]

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    made = loop.run_until_complete(
        loop.create_server(lambda: _Peer(counts, think_s), "127.0.0.1", 0, backlog=1024)
    )
    loop.add_reader(pipe.fileno(), report)
    pipe.send(made.sockets[0].getsockname()[1])
    loop.run_forever()


@dataclass
class Scripted:
    port: int
    pipe: Connection

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def counted(self) -> Counted:
        """Since the last time this was asked."""
        self.pipe.send(None)
        return self.pipe.recv()


@contextlib.contextmanager
def started(think_s: float) -> Iterator[Scripted]:
    mine, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(theirs, think_s), daemon=True
    )
    process.start()
    theirs.close()
    try:
        yield Scripted(mine.recv(), mine)
    finally:
        mine.close()
        process.join(5)
        process.terminate()
