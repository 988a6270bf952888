"""Our chat client against the `openai` package: a recording server gets the same requests, and both
read the same answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import openai
import pytest

from workers.lib.chat_client import ChatClient, ChatError, ChatServer, wait_s

KEY = "sk-of-a-test"


class Recorder(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: tuple[int, bytes] = (200, b"")
        self.seen: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Recorder

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        named = {
            name: self.headers[name] for name in ("Authorization", "Content-Type", "Accept", "Host")
        }
        self.server.seen.append({"path": self.path, "body": body} | named)
        status, data = self.server.answer
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setenv("A_KEY", KEY)
    server = Recorder()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ours(server: Recorder, body: dict) -> dict:
    at = ChatServer(
        server.url, "m", key_variable="A_KEY", tries=1, allow_private=True, droppable=()
    )
    with ChatClient(at) as client:
        return client.ask(body)


def theirs(server: Recorder, body: dict) -> dict:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        return client.chat.completions.create(model="m", **body).model_dump(exclude_unset=True)


USER = {"role": "user", "content": "What is 2 + 2? “Zwei” 🧮 \u2028 \x00"}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'},
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True},
}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [USER]},
    "sampling": {
        "messages": [USER],
        "temperature": 0.7,
        "top_p": 0.95,
        "max_tokens": 64,
        "seed": 7,
        "stop": ["\n"],
        "n": 1,
    },
    "tools": {
        "messages": [USER],
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    },
    "results": {
        "messages": [
            {"role": "system", "content": "Be short."},
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
        ]
    },
    "reasoning": {
        "messages": [
            USER,
            {"role": "assistant", "content": "4", "reasoning_content": "2 + 2 = 4"},
            USER,
        ]
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "schema": {
        "messages": [USER],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
        },
    },
    "logprobs": {"messages": [USER], "logprobs": True, "top_logprobs": 2},
}


def completion(message: dict, **more: Any) -> dict:
    choice = {
        "index": 0,
        "message": {"role": "assistant"} | message,
        "finish_reason": more.pop("finish_reason", "stop"),
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "m",
        "choices": [choice | more],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 3,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 8},
        },
    }


ANSWERS = {
    "text": completion({"content": "4 “vier” 🧮"}),
    "calls": completion(
        {"content": None, "tool_calls": [CALL, CALL | {"id": "c2"}]}, finish_reason="tool_calls"
    ),
    "reasoning": completion({"content": "4", "reasoning_content": "2 + 2 = 4"}),
    "refusal": completion({"content": None, "refusal": "No."}),
    "length": completion({"content": "4 and"}, finish_reason="length"),
    "logprobs": completion(
        {"content": "4"},
        logprobs={"content": [{"token": "4", "logprob": -0.25, "bytes": [52], "top_logprobs": []}]},
    ),
    "token ids": completion({"content": "4"}, token_ids=[19, 2]),
    "vendor's own": (
        completion({"content": "4", "annotations": []})
        | {"prompt_logprobs": None, "kv": {"a": [1]}}
    ),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_same_request_is_sent(server: Recorder, body: dict) -> None:
    server.answer = (200, json.dumps(ANSWERS["text"]).encode())
    ours(server, body), theirs(server, body)
    mine, other = server.seen
    assert (
        mine == other
        and mine["path"] == "/v1/chat/completions"
        and mine["Authorization"] == f"Bearer {KEY}"
    )


@pytest.mark.more(rows=6)
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("ascii", [True, False])
def test_the_same_answer_is_read(server: Recorder, answer: dict, ascii: bool) -> None:
    server.answer = (200, json.dumps(answer, ensure_ascii=ascii).encode())
    assert ours(server, {"messages": [USER]}) == theirs(server, {"messages": [USER]}) == answer


@pytest.mark.more(rows=5)
@pytest.mark.parametrize(
    "status", [301, 400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 503, 529]
)
def test_the_same_answers_are_errors(server: Recorder, status: int) -> None:
    said = "too odd a question"
    server.answer = (status, json.dumps({"error": {"message": said}}).encode())
    with pytest.raises(openai.APIStatusError) as their_error:
        theirs(server, {"messages": [USER]})
    with pytest.raises(ChatError, match=f"HTTP {status}") as our_error:
        ours(server, {"messages": [USER]})
    assert their_error.value.status_code == status and KEY not in str(our_error.value)
    assert (said in str(our_error.value)) == (
        status in (400, 404, 413, 422)
    ) and not our_error.value.paid


@pytest.mark.parametrize("asked", ["0", "1", "17", "2.5", "0.25"])
def test_as_long_a_rest_is_given(asked: str) -> None:
    with openai.OpenAI(api_key=KEY) as client:
        assert wait_s(1, asked) == client._parse_retry_after_header(
            httpx2.Headers({"retry-after": asked})
        )
