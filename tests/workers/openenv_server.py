"""A server that speaks OpenEnv's protocol as openenv-core 0.3.0 does: a counter, with an action of
its own or with MCP tools.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

ADD = {
    "name": "add",
    "description": "Adds.",
    "inputSchema": {
        "type": "object",
        "properties": {"by": {"type": "integer"}},
        "required": ["by"],
    },
}
SCHEMA = {
    "action": {
        "title": "Move",
        "description": "Moves the counter.",
        "type": "object",
        "additionalProperties": False,
        "required": ["by"],
        "properties": {"metadata": {"type": "object"}, "by": {"type": "integer"}},
    }
}


@dataclass
class Server:
    """`mode`: how it behaves. `sessions`: what each connection was sent."""

    by_mcp: bool = False
    mode: str = ""
    url: str = ""
    sessions: list[list[dict]] = field(default_factory=list)

    async def http(self, path: str) -> tuple[int, Any]:
        if self.mode == "nothing":
            return 404, {}
        if path == "/mcp":
            listed = (
                {"result": {"tools": [ADD]}}
                if self.by_mcp
                else {"error": {"code": -32603, "message": "no MCP"}}
            )
            return 200, {"jsonrpc": "2.0", "id": 1} | listed
        return (200, SCHEMA) if path == "/schema" else (404, {})

    def answer(self, state: dict, message: dict) -> dict | None:
        """None ends the connection."""
        data = message["data"]
        if message["type"] == "reset":
            if self.mode == "full":
                return {
                    "type": "error",
                    "data": {"message": "no place", "code": "CAPACITY_REACHED"},
                }
            state.update(value=0, goal=data.get("goal", 2))
            return self.observation({"value": 0}, 0.0, False)
        if self.mode == "dies":
            return None
        by = data["arguments"].get("by") if self.by_mcp else data.get("by")
        if not isinstance(by, int):
            return {
                "type": "error",
                "data": {"message": "Invalid message", "code": "VALIDATION_ERROR"},
            }
        state["value"] += by
        done = state["value"] == state["goal"]
        reward = "much" if self.mode == "strange" else float(done)
        seen = (
            {"result": {"content": [{"type": "text", "text": str(state["value"])}]}, "error": None}
            if self.by_mcp
            else {"value": state["value"]}
        )
        return self.observation(seen, reward, done)

    @staticmethod
    def observation(seen: dict, reward: Any, done: bool) -> dict:
        return {
            "type": "observation",
            "data": {"observation": seen, "reward": reward, "done": done},
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        if b"upgrade: websocket" in head.lower():
            await self.talk(head, reader, writer)
        else:
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ),
                0,
            )
            await reader.readexactly(length)
            status, body = await self.http(path)
            text = json.dumps(body).encode()
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                % (status, len(text), text)
            )
        writer.close()

    async def talk(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        socket, state, sent = WSConnection(ConnectionType.SERVER), {}, list[dict]()
        self.sessions.append(sent)
        data = head
        while data:
            socket.receive_data(data)
            for event in socket.events():
                if isinstance(event, Request):
                    writer.write(socket.send(AcceptConnection()))
                elif isinstance(event, TextMessage):
                    message = json.loads(event.data)
                    sent.append(message)
                    answer = None if message["type"] == "close" else self.answer(state, message)
                    if answer is None:
                        return
                    writer.write(socket.send(TextMessage(json.dumps(answer))))
                elif isinstance(event, CloseConnection):
                    return
            data = await reader.read(65536)


@contextmanager
def serving(**options: Any) -> Iterator[Server]:
    server, ready, loop = Server(**options), threading.Event(), asyncio.new_event_loop()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        ready.set()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(run())
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(300)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(300)
