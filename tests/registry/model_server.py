"""A scripted inference server at the edge, good or hostile: (method, path) → what it sends, as
bytes, as (status, JSON) or as a stream: an iterator of its parts, which may wait for what a test
does, and ends in the middle where it raises Cut.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Sent = bytes | tuple[int, Any] | Callable[[dict], tuple[int, Any] | Iterator[bytes]]
STREAMS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding:"
    b" chunked\r\n\r\n"
)


class Cut(OSError):
    """Raised by a stream that is to end in the middle."""


class ModelServer:
    """`base` is its address; `asked` the (method, path, headers, body) that it got."""

    def __init__(self, script: dict[tuple[str, str], Sent]) -> None:
        self.script, self.asked = script, []
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.base = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(connection)
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            head, body = _request(connection)
            method, path, _ = head[0].split(" ")
            self.asked.append((method, path, head[1:], body))
            sent = self.script.get((method, path), (404, {"detail": "Not Found"}))
            if callable(sent):
                sent = sent(json.loads(body))
            if isinstance(sent, Iterator):
                connection.sendall(STREAMS)
                for part in sent:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
                sent = b"0\r\n\r\n"
            connection.sendall(sent if isinstance(sent, bytes) else _whole(*sent))
            if sent != HANG:
                connection.close()
        except OSError:
            connection.close()
        except (
            Exception
        ):  # of a script that asserts: whoever asked is not to wait for its time limit
            connection.close()
            raise

    def close(self) -> None:
        with suppress(OSError):  # a thread waits in accept, which closing alone does not end
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.open:
            connection.close()


HANG = b""  # nothing comes, and the connection stays open


def _request(connection: socket.socket) -> tuple[list[str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    length = next(
        (int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return lines, body


def _whole(status: int, value: Any) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


@contextmanager
def serving(script: dict[tuple[str, str], Sent]) -> Iterator[ModelServer]:
    server = ModelServer(script)
    try:
        yield server
    finally:
        server.close()


def models(*ids: str, **more: Any) -> tuple[int, dict]:
    return 200, {
        "object": "list",
        "data": [{"id": name, "object": "model", **more} for name in ids],
    }


def chat(message: dict, **more: Any) -> tuple[int, dict]:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    return 200, {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant"} | message,
                "finish_reason": "stop",
                **more,
            }
        ],
        "usage": usage,
    }


def vllm(body: dict) -> tuple[int, dict]:
    """vLLM with tools: what it answers to each of the probe's questions."""
    if body.get("tools"):
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        }
        return chat({"content": None, "tool_calls": [call]})
    more: dict = (
        {"logprobs": {"content": [{"token": "a", "logprob": -0.1}]}} if body.get("logprobs") else {}
    )
    more |= {"token_ids": [7]} if body.get("return_token_ids") else {}
    return chat({"content": "a"}, **more)


# Streams, as vLLM sends them (RECORDED in tests/workers/test_chat_streams.py)

END = b"data: [DONE]\n\n"


def event(data: dict) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def chunk(delta: dict, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "m",
            "choices": [choice],
        }
    )


def begun(*texts: str) -> Iterator[bytes]:
    yield chunk({"role": "assistant", "content": ""})
    yield from (chunk({"content": text}) for text in texts)


def ended(finish_reason: str = "stop", tokens: int = 1) -> Iterator[bytes]:
    yield chunk({"content": "" if finish_reason != "tool_calls" else None}, finish_reason)
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    yield event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "m",
            "choices": [],
            "usage": usage,
        }
    )
    yield END
