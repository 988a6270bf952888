"""A small MCP server: what the protocol says of streamable HTTP, with faults on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOLS = [
    {
        "name": "add",
        "description": "Adds.",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    {"name": "fail", "inputSchema": {"type": "object"}},
]


class McpServer(ThreadingHTTPServer):
    """Sums by session. `streamed`: answers are events. `answers` replace what a method would
    say.
    """

    daemon_threads = True

    def __init__(self, *, streamed: bool, key: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.streamed, self.key = streamed, key
        self.sums: dict[str, int] = {}
        self.seen: list[tuple[str, str | None]] = []  # (method, protocol version)
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"


@contextmanager
def running(**options: Any) -> Iterator[McpServer]:
    with McpServer(**options) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: McpServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_DELETE(self) -> None:
        self.server.sums.pop(self.headers.get("Mcp-Session-Id", ""), None)
        self._say(200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, session = asked["method"], self.headers.get("Mcp-Session-Id", "")
        accepted = self.headers.get("Accept", "")
        assert (
            asked["jsonrpc"] == "2.0"
            and "application/json" in accepted
            and "text/event-stream" in accepted
        )
        with self.server.lock:
            self.server.seen.append((method, self.headers.get("MCP-Protocol-Version")))
            if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
                return self._say(401)
            if method == "initialize":
                session = f"s{len(self.server.seen)}"
                self.server.sums[session] = 0
                return self._result(
                    asked, {"protocolVersion": "2025-03-26", "capabilities": {}}, session
                )
            if session not in self.server.sums:
                return self._say(404)
            if method in self.server.answers:
                return self._say(*self.server.answers[method])
            if "id" not in asked:
                return self._say(202)
            return self._result(asked, self._answer(method, asked["params"], session))

    def _answer(self, method: str, params: dict, session: str) -> dict:
        if method == "tools/list":  # one tool a page
            page = int(params.get("cursor", 0))
            return {"tools": [TOOLS[page]]} | (
                {"nextCursor": str(page + 1)} if page + 1 < len(TOOLS) else {}
            )
        if params["name"] == "fail":
            return {"content": [{"type": "text", "text": "the till is closed"}], "isError": True}
        self.server.sums[session] += params["arguments"]["n"]
        text = f"sum\u2028{self.server.sums[session]} by {self.headers.get('Authorization')}"
        return {
            "content": [
                {"type": "text", "text": text},
                {"type": "image", "data": "", "mimeType": "image/png"},
            ]
        }

    def _result(self, asked: dict, result: dict, session: str = "") -> None:
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        if not self.server.streamed:
            return self._say(200, "application/json", json.dumps(answer).encode(), session)
        before = {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"id": asked["id"]},
        }
        lines = json.dumps(answer, ensure_ascii=False, indent=1).split("\n")
        events = (
            f": hello\r\nid: 0\r\ndata:\r\n\r\nevent: message\r\ndata: {json.dumps(before)}\r\n\r\n"
        )
        events += "event: message\r\n" + "".join(f"data: {line}\r\n" for line in lines) + "\r\n"
        return self._say(200, "text/event-stream; charset=utf-8", events.encode(), session)

    def _say(
        self, status: int, kind: str = "text/plain", body: bytes = b"", session: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)
