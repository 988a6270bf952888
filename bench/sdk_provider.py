"""A provider of models for `bench.sdks`: whatever the SDK, it asks for get_weather once, then says
what the tool said.

It speaks OpenAI chat completions (also as a stream) and Anthropic messages (as a stream), and
answers DSPy's text protocol.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.sending.provider import USAGE, chunks

MODEL = "gpt-5-mini-2025-08-07"
CITY = re.compile(r"weather in (\w+)\?")


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        text_of(part.get("text") or part.get("content") or "")
        for part in content or ()
        if isinstance(part, dict)
    )


def completion(asked: dict[str, Any]) -> dict[str, Any]:
    messages = asked["messages"]
    whole = "\n".join(text_of(message.get("content")) for message in messages)
    city = found[-1] if (found := CITY.findall(whole)) else "Oslo"
    names = [tool["function"]["name"] for tool in asked.get("tools") or ()]
    said = [message for message in messages if message["role"] == "tool"] or [
        message
        for message in messages
        if message["role"] == "user" and "Observation" in text_of(message["content"])
    ]
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    weather = next((name for name in names if "get_weather" in name), "")
    if "[[ ## " in whole:
        message["content"] = dspy_answer(messages, city)
    elif weather and not said:
        message["tool_calls"] = [_call(weather, {"city": city}, len(messages))]
    elif "final_answer" in names:
        message["tool_calls"] = [
            _call(
                "final_answer",
                {"answer": f"In {city}: {text_of(said[-1]['content'])[:60]}"},
                len(messages),
            )
        ]
    else:
        message["content"] = f"In {city}: {text_of(said[-1]['content'])[:60] if said else 'rain'}"
    given, made = USAGE[bool(said)]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl-{len(messages)}",
        "object": "chat.completion",
        "created": 1_795_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made},
    }


def _call(name: str, arguments: dict, number: int) -> dict[str, Any]:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def dspy_answer(messages: list[dict], city: str) -> str:
    """By DSPy's markers: a step of ReAct, or the answer at its end."""
    asked = text_of(messages[-1]["content"])
    step = asked.rfind("next_thought") > asked.rfind("Respond with")
    if "JSON object" in asked and not step:
        return json.dumps({"reasoning": "The tool said so.", "answer": f"In {city}: 7 °C and rain"})
    if not step:
        return (
            f"[[ ## reasoning ## ]]\nThe tool said so.\n\n[[ ## answer ## ]]\nIn {city}: 7 °C and"
            " rain\n\n[[ ## completed ## ]]"
        )
    name, arguments = (
        ("finish", {}) if "observation_0" in asked else ("get_weather", {"city": city})
    )
    return (
        f"[[ ## next_thought ## ]]\nLook.\n\n[[ ## next_tool_name ## ]]\n{name}\n\n"
        f"[[ ## next_tool_args ## ]]\n{json.dumps(arguments)}\n\n[[ ## completed ## ]]"
    )


def anthropic_events(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A message of Anthropic's API as the events of a stream."""
    messages = asked["messages"]
    city = found[-1] if (found := CITY.findall(json.dumps(messages))) else "Oslo"
    replies = [
        part
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if isinstance(part, dict) and part.get("type") == "tool_result"
    ]
    weather = next(
        (tool["name"] for tool in asked.get("tools") or () if "get_weather" in tool["name"]), ""
    )
    calls = bool(weather and not replies)
    given, made = USAGE[bool(replies)]
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": given, "output_tokens": 1},
    }
    yield {"type": "message_start", "message": message}
    if calls:
        block = {"type": "tool_use", "id": "toolu_1", "name": weather, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({"city": city})}
    else:
        said = text_of(replies[-1]["content"])[:60] if replies else "rain"
        block, delta = (
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": f"In {city}: {said}"},
        )
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    ended = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": made}}
    yield {"type": "message_stop"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path.endswith(("/v1/traces", "/v1/logs")):
            self.server.received.append(
                (path.rsplit("/", 1)[-1], self.headers.get("Content-Encoding", ""), body)
            )  # type: ignore[attr-defined]
            return self.reply({})
        asked = json.loads(body or b"{}")
        if path.endswith("/chat/completions"):
            answer = completion(asked)
            return (
                self.events(({"data": chunk} for chunk in chunks(answer)), done=True)
                if asked.get("stream")
                else self.reply(answer)
            )
        if path.endswith("/messages"):
            return self.events(
                {"event": event["type"], "data": event} for event in anthropic_events(asked)
            )
        if path.endswith("/count_tokens"):
            return self.reply({"input_tokens": 60})
        return self.reply({})

    def do_GET(self) -> None:
        self.reply({"data": [{"id": MODEL, "object": "model"}]})

    def events(self, found: Any, done: bool = False) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in found:
            head = f"event: {event['event']}\n" if "event" in event else ""
            self.wfile.write(f"{head}data: {json.dumps(event['data'])}\n\n".encode())
        if done:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def reply(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def server() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """Its address, and the OTLP bodies that it gets: (traces or logs, encoding, body)."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.received = []  # type: ignore[attr-defined]
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", running.received  # type: ignore[attr-defined]
    finally:
        running.shutdown()
        running.server_close()
