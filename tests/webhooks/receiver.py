"""A receiver of webhooks on this machine that does what it is told to, request by request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = Callable[[BaseHTTPRequestHandler], None]


def says(status: int, body: bytes = b"ok", **headers: str) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


@dataclass
class Got:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """`replies` are used up one by one; then it answers 200. `over` ends what hangs."""

    replies: list[Reply] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def hangs(self, handler: BaseHTTPRequestHandler) -> None:
        self.over.wait()

    def hangs_in_the_body(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"beginning")
        handler.wfile.flush()
        self.over.wait()


@contextmanager
def running() -> Iterator[Receiver]:
    receiver, lock = Receiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                receiver.got.append(
                    Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                )
                reply = receiver.replies.pop(0) if receiver.replies else says(200)
            with suppress(OSError):  # the sender has gone
                reply(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield receiver
    finally:
        receiver.over.set()
        server.shutdown()
        server.server_close()
