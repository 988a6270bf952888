"""A provider of models for `bench.sdks`, and what takes the SDKs' telemetry: it answers by the
scenario that is on, in the API that it is asked in, and keeps what was asked and said.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from bench import sdk_dialects as dialects
from bench.sdk_dialects import Answer, Call, Json, Message, Request
from bench.sdk_scenarios import HANDOFF, OUTAGE, SCENARIOS, TOOL, Turn

# What answers behind an alias; any other model answers under its own name.
MODELS = ("gpt-5-mini-2025-08-07", "claude-sonnet-4-5-20250929")
PATHS = (
    ("/chat/completions", "chat"),
    ("/responses", "responses"),
    ("/messages", "anthropic"),
    (":generateContent", "gemini"),
    (":streamGenerateContent", "gemini"),
    ("/converse", "bedrock"),
)
UNCOUNTED = ("anthropic", "bedrock")  # whose usage says nothing of thoughts
ANOTHER = re.compile("transfer|handoff|hand_off|delegate|specialist", re.IGNORECASE)
FINAL = "final_answer"  # the tool by which smolagents' model answers


class Unscripted(Exception):
    """A request that no turn of the scenario answers."""


@dataclass
class Exchange:
    """A request with the history that it goes on with, and what was answered; None if that was an
    error.
    """

    request: Request
    answer: Answer | None


@dataclass
class Played:
    """A scenario as it went, from `start_ns` on."""

    name: str
    start_ns: int
    exchanges: list[Exchange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        return [exchange.answer for exchange in self.exchanges if exchange.answer is not None]

    def take(self, request: Request, counts_thoughts: bool) -> Answer | None:
        """The answer of the turn that is due, and None where it fails."""
        turn = SCENARIOS[self.name].turns[min(len(self.answers), self.last)]
        if turn.fails:
            self.exchanges.append(Exchange(request, None))
            return None
        number = f"{self.name}{len(self.exchanges)}"
        usage = turn.usage if counts_thoughts else replace(turn.usage, reasoning=0)
        model = next((name for name in MODELS if name.startswith(request.model)), request.model)
        answer = Answer(f"{number}-0123456789", model, usage)
        _speak(answer, turn, request, number)
        self.exchanges.append(Exchange(request, answer))
        return answer

    @property
    def last(self) -> int:
        return len(SCENARIOS[self.name].turns) - 1


def _speak(answer: Answer, turn: Turn, request: Request, number: str) -> None:
    answer.thought = turn.thought
    if any("[[ ## " in message.text for message in request.messages):
        answer.marked = _by_markers(turn, request)
        answer.text = turn.text
        answer.calls = [Call("", name, arguments) for name, arguments in turn.calls]
    elif turn.text and FINAL in request.tools:
        answer.calls = [Call(f"call_{number}_final", FINAL, {"answer": turn.text})]
    elif turn.text:
        answer.text = turn.text
    else:
        answer.calls = [
            Call(f"call_{number}_{place}", *_named(name, arguments, request))
            for place, (name, arguments) in enumerate(turn.calls)
        ]


def _named(name: str, arguments: Json, request: Request) -> tuple[str, Json]:
    """The tool as the SDK calls it, with what it asks for when another agent is to take over."""
    fits = ANOTHER.search if name == HANDOFF else re.compile(TOOL).search
    real = next((tool for tool in request.tools if fits(tool)), None)
    if real is None:
        raise Unscripted(f"no {name} among the tools {list(request.tools)}")
    if name != HANDOFF:
        return real, arguments
    wanted = (request.tools[real].get("properties") or {}) if request.tools[real] else {}
    return real, {key: _filled(key) for key in wanted}


def _filled(key: str) -> str:
    return "specialist" if "agent" in key or key == "coworker" else "Turku, please."


def _by_markers(turn: Turn, request: Request) -> str:
    """DSPy's text protocol: a step of ReAct, or the answer at its end."""
    asked = request.messages[-1].text
    if asked.rfind("next_thought") <= asked.rfind("Respond with"):
        answer = turn.text or "?"
        return (
            f"[[ ## reasoning ## ]]\nThe tool said so.\n\n[[ ## answer ## ]]\n{answer}\n\n"
            "[[ ## completed ## ]]"
        )
    name, arguments = turn.calls[0] if turn.calls else ("finish", {})
    return (
        f"[[ ## next_thought ## ]]\nLook.\n\n[[ ## next_tool_name ## ]]\n{name}\n\n"
        f"[[ ## next_tool_args ## ]]\n{json.dumps(arguments)}\n\n[[ ## completed ## ]]"
    )


class Provider:
    """What is kept of a program's run."""

    def __init__(self) -> None:
        self.played: list[Played] = []
        self.telemetry: list[tuple[str, bytes]] = []  # traces or logs, and the body
        self.history: dict[str, list[Message]] = {}  # by the response that ends it
        self.lock = threading.Lock()

    def begin(self, name: str) -> None:
        self.played.append(Played(name, time.time_ns()))

    def answer(self, api: str, request: Request) -> Answer | None:
        with self.lock:
            if not self.played:
                raise Unscripted("no scenario is on")
            played = self.played[-1]
            if request.previous:
                known = self.history.get(request.previous)
                if known is None:
                    raise Unscripted(f"no response {request.previous}")
                system = [said for said in request.messages if said.role == "system"]
                rest = [said for said in request.messages if said.role != "system"]
                request.messages = [*system, *known, *rest]
            try:
                answer = played.take(request, api not in UNCOUNTED)
            except Unscripted as error:
                played.problems.append(str(error))
                raise
            if answer is not None:
                rest = [said for said in request.messages if said.role != "system"]
                self.history[answer.id] = [*rest, answer.message]
            return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        provider: Provider = self.server.provider
        body = self.body()
        path = self.path.partition("?")[0]
        if path.startswith("/scenario/"):
            name = path.rsplit("/", 1)[1]
            provider.begin(name)
            return self.reply(200, {"question": SCENARIOS[name].question})
        if path.endswith(("/v1/traces", "/v1/logs")):
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            provider.telemetry.append((path.rsplit("/", 1)[-1], body))
            return self.reply(200, {})
        api = next((api for end, api in PATHS if path.endswith(end)), "")
        if not api:
            return self.reply(200, {"input_tokens": 60})
        asked = json.loads(body or b"{}")
        request = getattr(dialects, f"{api}_request")(asked)
        request.streams = request.streams or "stream" in path
        request.model = request.model or _model_in(path)
        try:
            answer = provider.answer(api, request)
        except Unscripted as error:
            return self.reply(400, _error(api, str(error), 400))
        if answer is None:
            return self.reply(500, _error(api, OUTAGE, 500))
        if not request.streams:
            return self.reply(200, getattr(dialects, f"{api}_answer")(answer, asked))
        return self.events(api, getattr(dialects, f"{api}_events")(answer, asked))

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        whole = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": MODELS[0], "object": "model"}]})

    def do_HEAD(self) -> None:
        self.reply(200, {})

    def events(self, api: str, events: Iterable[Json]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            head = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{head}data: {json.dumps(event)}\n\n".encode())
        if api == "chat":
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def reply(self, status: int, body: Json) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


def _model_in(path: str) -> str:
    found = re.search(r"/models?/([^/]+)", unquote(path))
    return re.sub(":(stream)?[gG]enerateContent$", "", found[1]) if found else ""


def _error(api: str, said: str, status: int) -> Json:
    if api == "gemini":
        return {"error": {"code": status, "message": said, "status": "INTERNAL"}}
    if api == "bedrock":
        return {"message": said}
    error = {"type": "server_error", "message": said}
    return {"type": "error", "error": error} if api == "anthropic" else {"error": error}


@contextmanager
def running() -> Iterator[tuple[str, Provider]]:
    """Its address, and what it keeps."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.provider = Provider()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.provider  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
