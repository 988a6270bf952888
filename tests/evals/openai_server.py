"""A local OpenAI-compatible server that answers by a script. `python -m tests.evals.openai_server
SCRIPT`

The script is JSON, {model: {request: [messages of the agent, in their order]}}; a request is the
user's last words. Answers come whole or, where `stream` is asked for, as server-sent events. Prints
its port; the requests it got are at GET /requests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def text_of(content: Any) -> str:
    return (
        content
        if isinstance(content, str)
        else "".join(part.get("text", "") for part in content or [])
    )


def reply_to(script: dict, body: dict) -> dict | None:
    """The script's next message in this conversation; None where it has none."""
    asked = max(at for at, message in enumerate(body["messages"]) if message["role"] == "user")
    turns = sum(message["role"] == "assistant" for message in body["messages"][asked:])
    replies = script.get(body["model"], {}).get(text_of(body["messages"][asked]["content"]), [])
    return {"role": "assistant", "content": None} | replies[turns] if turns < len(replies) else None


def completion(body: dict, message: dict) -> dict:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
    return head | {"choices": [choice], "usage": usage}


def events(whole: dict) -> Iterator[str]:
    """The answer in parts: role and content or calls, then the end, then the usage."""
    choice = whole["choices"][0]
    calls = [
        {"index": at} | call for at, call in enumerate(choice["message"].get("tool_calls") or [])
    ]
    delta = choice["message"] | ({"tool_calls": calls} if calls else {})
    head = {key: whole[key] for key in ("id", "created", "model")} | {
        "object": "chat.completion.chunk"
    }
    parts = (
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        {"choices": [], "usage": whole["usage"]},
    )
    yield from (f"data: {json.dumps(head | part)}\n\n" for part in parts)
    yield "data: [DONE]\n\n"


class Handler(BaseHTTPRequestHandler):
    script: dict = {}
    seen: list[dict] = []

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, "application/json", json.dumps(self.seen))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        message = reply_to(self.script, body)
        if message is None:
            self.answer(
                400,
                "application/json",
                json.dumps({"error": {"message": "the script has no answer to this"}}),
            )
        elif body.get("stream"):
            self.answer(200, "text/event-stream", "".join(events(completion(body, message))))
        else:
            self.answer(200, "application/json", json.dumps(completion(body, message)))

    def answer(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    Handler.script = json.loads(Path(sys.argv[1]).read_text())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
