"""Servers that answer as vLLM's API does, by script: in a thread, on a free port. Each says its own
name, so that mixing shows.

What the last message says decides: `stream N` (words), `status N`, `die` (closes without an
answer), `die after N`, `hang`, `hang after N`, `half N` (ends well-formed without the answer's
end), `error in stream`, `tool` (calls the first tool), `large N` (KiB in one piece).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

HEAD = (
    b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\nx-request-id: from-the-server\r\nkeep-alive:"
    b" timeout=5\r\nset-cookie: a=b\r\n"
)


class Scripted:
    def __init__(self, name: str) -> None:
        self.name, self.port = name, 0
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = self.left = self.open = 0
        self.gap_s = 0.002
        self.busy = False  # answers 503 to everything
        self.refuses = 0  # a status that it answers to everything
        self.hangs = False
        self.says = ""  # what decides instead of the last message
        self.models: tuple[str, ...] = ()  # that it lists
        self.raw = b""  # sent instead of every answer
        self.lacks = False  # has started, and not yet loaded what is asked for
        self.counts = (  # a stream's usage; "never"; "refuses" to be asked with this status
            "on request"
        )
        self.refuses_with = 400
        self.loop = asyncio.new_event_loop()
        self.readers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def kill(self) -> None:
        """Closes all connections in the middle of what they say, and listens no more."""
        asyncio.run_coroutine_threadsafe(self._kill(), self.loop).result(10)

    async def _kill(self) -> None:
        self.server.close()
        for writer in list(self.readers):
            writer.transport.abort()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.readers[writer] = reader
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in lines[1:] if line)
                }
                size = int(headers.get("content-length", 0))
                body = json.loads(await reader.readexactly(size) or b"{}")
                self.asked.append(body)
                self.headers.append(headers)
                self.open += 1
                try:
                    await self._answer(lines[0].split()[1], body, writer)
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.left += 1
        finally:
            del self.readers[writer]
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if path.endswith("/models"):
            listed = [{"id": name, "object": "model"} for name in self.models]
            await self._whole(writer, json.dumps({"object": "list", "data": listed}))
            return
        if "messages" not in body and "input" not in body:
            await self._whole(writer, '{"detail": "Not Found"}', 404)
            return
        asked = body.get("messages") or body["input"]
        said = asked if isinstance(asked, str) else asked[-1].get("content") or ""
        words = (self.says or said).split() if isinstance(said, str) else []
        verb, number = (words or [""])[0], int(words[-1]) if words and words[-1].isdigit() else 5
        if self.busy or self.refuses:
            verb, number = "status", self.refuses or 503
        if self.raw:
            writer.write(self.raw)
            await writer.drain()
            return
        if self.hangs:
            await _until_left(self.readers[writer])
        if self.lacks:
            unknown = {
                "message": f"The model `{body['model']}` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
            await self._whole(writer, json.dumps({"error": unknown}), 404)
            return
        if verb == "status":
            error = {
                "error": {
                    "message": f"{self.name} refuses",
                    "type": "BadRequestError",
                    "param": None,
                    "code": number,
                }
            }
            more = b"retry-after: 7\r\n" if number in (429, 503) else b""
            await self._whole(writer, json.dumps(error), number, more)
            return
        if self.counts == "refuses" and "stream_options" in body:
            await self._whole(
                writer,
                '{"error": {"message": "Extra inputs are not permitted"}}',
                self.refuses_with,
            )
            return
        if verb == "die" and len(words) == 1:
            raise ConnectionError
        if verb == "hang" and len(words) == 1:
            await _until_left(self.readers[writer])
        if path.endswith("/responses"):
            await self._responses(body, writer, number)
        elif body.get("stream"):
            await self._chat_stream(body, writer, verb, number)
        else:
            await self._whole(writer, json.dumps(self._completion(body, verb, number)))

    def _completion(self, body: dict[str, Any], verb: str, number: int) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "x" * 1024 * number if verb == "large" else self.name,
        }
        if verb == "tool":
            name = body["tools"][0]["function"]["name"]
            call = {
                "id": "call_7",
                "type": "function",
                "function": {"name": name, "arguments": '{"city": "Oslo"}'},
            }
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "tool_calls" if verb == "tool" else "stop",
        }
        usage = {"prompt_tokens": 11, "total_tokens": 14, "completion_tokens": 3}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }

    async def _whole(
        self, writer: asyncio.StreamWriter, text: str, status: int = 200, more: bytes = b""
    ) -> None:
        data = text.encode()
        writer.write(
            HEAD % (status, b"Said", b"application/json")
            + more
            + b"content-length: %d\r\n\r\n" % len(data)
            + data
        )
        await writer.drain()

    async def _chat_stream(
        self, body: dict[str, Any], writer: asyncio.StreamWriter, verb: str, number: int
    ) -> None:
        base = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
        }
        deltas: list[dict] = [{"role": "assistant", "content": ""}]
        if verb == "tool":
            function = {"name": body["tools"][0]["function"]["name"], "arguments": ""}
            deltas.append(
                {
                    "tool_calls": [
                        {"index": 0, "id": "call_7", "type": "function", "function": function}
                    ]
                }
            )
            for part in ('{"city": ', '"Oslo"}'):
                deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
        else:
            deltas += [{"content": f"{self.name} "} for _ in range(number)]
        writer.write(
            HEAD % (200, b"OK", b"text/event-stream; charset=utf-8")
            + b"transfer-encoding: chunked\r\n\r\n"
        )
        for delta in deltas:
            _event(
                writer,
                base
                | {
                    "choices": [
                        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
                    ]
                },
            )
            await writer.drain()
            await asyncio.sleep(self.gap_s)
        if verb == "die":
            writer.transport.abort()
            raise ConnectionError
        if verb == "half":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return
        if verb == "hang":
            await _until_left(self.readers[writer])
        if verb == "error":
            _event(
                writer,
                {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}},
            )
        else:
            reason = "tool_calls" if verb == "tool" else "stop"
            _event(
                writer,
                base
                | {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}]},
            )
            if self.counts == "on request" and (body.get("stream_options") or {}).get(
                "include_usage"
            ):
                usage = {
                    "prompt_tokens": 11,
                    "total_tokens": 11 + number,
                    "completion_tokens": number,
                }
                _event(writer, base | {"choices": [], "usage": usage})
        _event(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _responses(
        self, body: dict[str, Any], writer: asyncio.StreamWriter, number: int
    ) -> None:
        text = f"{self.name} " * number
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        made = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": body["model"],
            "output": [item],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
            "error": None,
            "instructions": None,
            "usage": {
                "input_tokens": 11,
                "output_tokens": number,
                "total_tokens": 11 + number,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }
        if not body.get("stream"):
            await self._whole(writer, json.dumps(made))
            return
        writer.write(
            HEAD % (200, b"OK", b"text/event-stream; charset=utf-8")
            + b"transfer-encoding: chunked\r\n\r\n"
        )
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        events: list[dict] = [
            {"type": "response.created", "response": made | {"status": "in_progress", "output": []}}
        ]
        events += [
            {
                "type": "response.output_text.delta",
                "delta": f"{self.name} ",
                "logprobs": [],
                **where,
            }
            for _ in range(number)
        ]
        events += [{"type": "response.completed", "response": made}]
        for place, event in enumerate(events):
            _event(writer, event | {"sequence_number": place}, event["type"])
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _until_left(reader: asyncio.StreamReader) -> None:
    await reader.read(1)
    raise ConnectionError


def _event(writer: asyncio.StreamWriter, data: dict | bytes, name: str = "") -> None:
    text = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    event = (f"event: {name}\n".encode() if name else b"") + b"data: " + text + b"\n\n"
    writer.write(b"%x\r\n%s\r\n" % (len(event), event))


S = TypeVar("S", bound=Scripted)


@contextlib.contextmanager
def scripted(name: str, kind: type[S] = Scripted) -> Iterator[S]:  # type: ignore[assignment]
    it = kind(name)
    thread = threading.Thread(target=it.loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(it.start(), it.loop).result(10)
    try:
        yield it
    finally:
        with contextlib.suppress(Exception):
            it.kill()
        it.loop.call_soon_threadsafe(it.loop.stop)
        thread.join(300)
