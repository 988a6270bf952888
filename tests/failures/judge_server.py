"""A small OpenAI-compatible server on this machine. It refuses what the real API would refuse, and
answers in its form.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jsonschema

# From OpenAI's API reference, “Create chat completion”: the part of the request and of the response
# that is used.
REQUEST = {
    "type": "object",
    "required": ["model", "messages"],
    "additionalProperties": False,
    "properties": {
        "model": {"type": "string", "minLength": 1},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "additionalProperties": False,
                "properties": {
                    "role": {"enum": ["system", "user", "assistant"]},
                    "content": {"type": "string"},
                },
            },
        },
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "max_tokens": {"type": "integer", "minimum": 1},
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "response_format": {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
        },
    },
}
RESPONSE = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "message", "finish_reason"],
                "properties": {
                    "index": {"type": "integer"},
                    "finish_reason": {
                        "enum": ["stop", "length", "tool_calls", "content_filter", "function_call"]
                    },
                    "message": {
                        "type": "object",
                        "required": ["role", "content"],
                        "properties": {
                            "role": {"const": "assistant"},
                            "content": {"type": ["string", "null"]},
                        },
                    },
                },
            },
        },
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
            "properties": {
                name: {"type": "integer"}
                for name in ("prompt_tokens", "completion_tokens", "total_tokens")
            },
        },
    },
}
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}


@dataclass
class Reply:
    """What the server does with one request."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    delay_s: float = 0.0
    usage: dict[str, int] | None = field(default_factory=lambda: dict(USAGE))
    finish_reason: str = "stop"


class JudgeServer(ThreadingHTTPServer):
    """`script` is used up first, then `answer` is asked; `refuses` are fields of the body it
    answers with HTTP 400.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: list[Reply] = []
        self.answer: Callable[[dict], Reply] = lambda body: Reply(
            says(failed=False, reason="All is well.")
        )
        self.refuses: tuple[str, ...] = ()
        self.seen: list[dict] = []
        self.keys: list[str | None] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        reply = self._reply(body)
        if reply.delay_s:
            self.server.released.wait(reply.delay_s)
        data = reply.raw if reply.raw is not None else json.dumps(form_of(reply, body)).encode()
        self.send_response(reply.status)
        for name, value in {
            "Content-Length": str(len(data)),
            "Content-Type": "application/json",
            **reply.headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # the judge's patience may be over
            self.wfile.write(data)

    def _reply(self, body: dict) -> Reply:
        if self.path != "/v1/chat/completions":
            return Reply("no such path", 404)
        try:
            jsonschema.validate(body, REQUEST)
        except jsonschema.ValidationError as error:
            return Reply(error.message, 400)
        refused = next((name for name in self.server.refuses if name in body), None)
        if refused:
            return Reply(
                f"Unsupported parameter: '{refused}' is not supported with this model.", 400
            )
        return self.server.script.pop(0) if self.server.script else self.server.answer(body)


def form_of(reply: Reply, body: dict) -> dict[str, Any]:
    if reply.status != 200:
        return {
            "error": {
                "message": reply.text,
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        }
    message = {"role": "assistant", "content": reply.text}
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}],
    }
    return whole if reply.usage is None else whole | {"usage": reply.usage}


def says(**fields: Any) -> str:
    """A verdict as a judge writes it."""
    usual = {"failed": True, "mode": None, "message_index": None, "quote": "", "reason": ""}
    return json.dumps(usual | fields)


@contextmanager
def running() -> Iterator[JudgeServer]:
    server = JudgeServer()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
