"""A server's `POST /v1/embeddings` by a script, after OpenAI's “Create embeddings”: a batch in, one
vector a text out, each with its index, in whatever order. `wrong` makes it misbehave in one way;
the first answers have the statuses in `failures`.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

WIDTH = 24


def vector_of(text: str) -> list[float]:
    """By the letters of a text alone."""
    rng = Random(zlib.crc32(text.encode()))
    return [rng.gauss(0, 1) for _ in range(WIDTH)]


Items = list[dict[str, Any]]
HTML = b"<!doctype html><title>Gateway</title>"
WRONG: dict[str, Callable[[Items], Any]] = {
    "another order": lambda items: items[::-1],
    "one too few": lambda items: items[1:],
    "none": lambda items: [],
    "an index twice": lambda items: [item | {"index": 0} for item in items],
    "an index beyond": lambda items: [item | {"index": item["index"] + 1} for item in items],
    "no index": lambda items: [{"embedding": item["embedding"]} for item in items],
    "other lengths": lambda items: [
        item | {"embedding": item["embedding"][item["index"] % 2 :]} for item in items
    ],
    "NaN": lambda items: [
        item | {"embedding": [math.nan, *item["embedding"][1:]]} for item in items
    ],
    "infinity": lambda items: [
        item | {"embedding": [math.inf, *item["embedding"][1:]]} for item in items
    ],
    "a huge integer": lambda items: [
        item | {"embedding": [10**400, *item["embedding"][1:]]} for item in items
    ],
    "beyond float32": lambda items: [
        item | {"embedding": [1e300, *item["embedding"][1:]]} for item in items
    ],
    "zeros": lambda items: [item | {"embedding": [0] * WIDTH} for item in items],
    "empty vectors": lambda items: [item | {"embedding": []} for item in items],
    "texts": lambda items: [
        item | {"embedding": [str(value) for value in item["embedding"]]} for item in items
    ],
    "nested": lambda items: [item | {"embedding": [[1.0], [2.0]]} for item in items],
    "null": lambda items: [item | {"embedding": None} for item in items],
    "base64": lambda items: [item | {"embedding": "AACAPwAAAEA="} for item in items],
    "no list": lambda items: {"embedding": [1.0]},
}


class EmbeddingServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failures: list[int] = []
        self.wrong: str = ""
        self.raw: bytes | None = None
        self.meanings: dict[str, str] = {}  # text: the other text whose vector it gets
        self.width_of_batch: Callable[[int], int] = lambda number: WIDTH
        self.hangs = threading.Event()
        self.bodies: list[dict] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, body: dict) -> bytes:
        if self.raw is not None:
            return self.raw
        width = self.width_of_batch(len(self.bodies))
        items = [
            {
                "object": "embedding",
                "index": at,
                "embedding": vector_of(self.meanings.get(text, text))[:width],
            }
            for at, text in enumerate(body["input"])
        ]
        data = WRONG[self.wrong](items) if self.wrong else items
        usage = {"prompt_tokens": 8, "total_tokens": 8}
        return json.dumps(
            {"object": "list", "data": data, "model": body["model"], "usage": usage}
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    server: EmbeddingServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        self.server.paths.append(self.path)
        if self.server.hangs.is_set():
            while self.server.hangs.is_set():
                threading.Event().wait(0.05)
            return
        status = self.server.failures.pop(0) if self.server.failures else 200
        data = (
            self.server.answer(body)
            if status == 200
            else json.dumps({"error": {"message": "no such thing"}}).encode()
        )
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def running() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.hangs.clear()
        server.shutdown()
        server.server_close()
        thread.join()
