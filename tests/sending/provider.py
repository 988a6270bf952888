"""A provider of models that speaks OpenAI's two APIs by a script: it asks for the tool, then says
what the tool said.

The city in the question chooses what happens: `Outage` fails at once, `Relapse` once the tool has
answered.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "gpt-5-mini-2025-08-07"
TOOL = "get_weather"
CITY = re.compile(r"weather in (\w+)\?")
USAGE = ((60, 12), (90, 8))  # input and output tokens of the first and the second call


class Refused(Exception):
    """A request that the real provider would refuse."""


def text_of(content: Any) -> str:
    return (
        content
        if isinstance(content, str)
        else "".join(part.get("text", "") for part in content or ())
    )


def next_step(
    question: str, tool_said: str | None, tools: list[str]
) -> dict[str, Any] | str | None:
    """The arguments of a call, or the answer, or None for an outage. Raises Refused."""
    found = CITY.search(question)
    if not found or tools != [TOOL]:
        raise Refused(f"no question that the script knows, or tools {tools}: {question!r}")
    city = found[1]
    if city == "Outage" or (city == "Relapse" and tool_said is not None):
        return None
    return {"city": city} if tool_said is None else f"In {city}: {tool_said}"


def chat_completion(asked: dict[str, Any]) -> dict[str, Any] | None:
    messages = asked["messages"]
    said = [message for message in messages if message["role"] == "tool"]
    calls = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    if [message["tool_call_id"] for message in said] != calls:
        raise Refused("every call needs its reply")
    question = next(
        text_of(message["content"]) for message in messages if message["role"] == "user"
    )
    tools = [tool["function"]["name"] for tool in asked.get("tools", ())]
    step = next_step(question, text_of(said[-1]["content"]) if said else None, tools)
    if step is None:
        return None
    message: dict[str, Any] = {
        "role": "assistant",
        "content": step if said else None,
        "refusal": None,
    }
    if isinstance(step, dict):
        function = {"name": TOOL, "arguments": json.dumps(step)}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    given, made = USAGE[bool(said)]
    reason = "stop" if said else "tool_calls"
    return {
        "id": f"chatcmpl-{len(said)}",
        "object": "chat.completion",
        "created": 1_795_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made},
    }


def response(asked: dict[str, Any]) -> dict[str, Any] | None:
    given = asked["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    said = [item for item in items if item.get("type") == "function_call_output"]
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    if [item["call_id"] for item in said] != calls:
        raise Refused("every call needs its output")
    question = next(text_of(item["content"]) for item in items if item.get("role") == "user")
    tools = asked.get("tools", [])
    step = next_step(
        question, text_of(said[-1]["output"]) if said else None, [tool["name"] for tool in tools]
    )
    if step is None:
        return None
    if isinstance(step, dict):
        call = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": TOOL,
            "status": "completed",
        }
        output = [call | {"arguments": json.dumps(step)}]
    else:
        content = [{"type": "output_text", "text": step, "annotations": [], "logprobs": []}]
        output = [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        ]
    came, made = USAGE[bool(said)]
    return {
        "id": f"resp_{len(said)}",
        "object": "response",
        "created_at": 1_795_000_000,
        "status": "completed",
        "model": MODEL,
        "output": output,
        "instructions": asked.get("instructions"),
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "error": None,
        "incomplete_details": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": {
            "input_tokens": came,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": came + made,
        },
    }


def chunks(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A completion as a stream gives it: who speaks, what is said in pieces, why it ended, and at
    last the usage.
    """
    head = {name: whole[name] for name in ("id", "created", "model")} | {
        "object": "chat.completion.chunk"
    }
    message = whole["choices"][0]["message"]
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": None if "tool_calls" in message else ""}
    ]
    for index, call in enumerate(message.get("tool_calls", ())):
        text = call["function"]["arguments"]
        deltas.append(
            {
                "tool_calls": [
                    call | {"index": index, "function": call["function"] | {"arguments": ""}}
                ]
            }
        )
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in (text[:5], text[5:])
        ]
    text = message["content"] or ""
    deltas += [{"content": text[at : at + 7]} for at in range(0, len(text), 7)]
    ends = [None] * len(deltas) + [whole["choices"][0]["finish_reason"]]
    for delta, end in zip([*deltas, {}], ends, strict=True):
        yield head | {
            "choices": [{"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}],
            "usage": None,
        }
    yield head | {"choices": [], "usage": whole["usage"]}


ANSWERS = {"/v1/chat/completions": chat_completion, "/v1/responses": response}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.path not in ANSWERS or (
                asked.get("stream") and self.path != "/v1/chat/completions"
            ):
                raise Refused(f"{self.path}, or a stream of it, is not in the script")
            answer = ANSWERS[self.path](asked)
        except (Refused, KeyError, StopIteration) as error:
            return self.reply(
                400, {"error": {"message": repr(error), "type": "invalid_request_error"}}
            )
        if answer is None:
            return self.reply(
                500, {"error": {"message": "The model is overloaded.", "type": "server_error"}}
            )
        return self.stream(answer) if asked.get("stream") else self.reply(200, answer)

    def stream(self, answer: dict[str, Any]) -> None:
        """Server-sent events; the end of the connection is the end of the stream."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks(answer):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def reply(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def provider() -> Iterator[str]:
    """Its base URL, as in OPENAI_BASE_URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
