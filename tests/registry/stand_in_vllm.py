"""A program with vLLM's contract at its edge, for tests: `vllm serve FOLDER --host … --port …`, its
API, its log, its end.

`FOLDER/stand-in.json` says how it fails: {"says": a line, "status": it ends with that before it
listens, "deaf": true: it never listens}. It starts a process of its own, as vLLM starts an engine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    name, slots, adapters = "", 0, {}  # type: ignore[var-annotated]

    def log_message(self, *_: Any) -> None:
        return

    def send(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send(*(self.models() if self.path == "/v1/models" else NOTHING))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        found = {
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
            "/v1/chat/completions": self.chat,
        }.get(self.path)
        self.send(*(found(body) if found else NOTHING))

    def models(self) -> tuple[int, Any]:
        rows = [{"id": self.name, "object": "model", "max_model_len": 2048, "parent": None}]
        rows += [
            {"id": name, "object": "model", "parent": self.name, "root": root}
            for name, root in self.adapters.items()
        ]
        return 200, {"object": "list", "data": rows}

    def load(self, body: dict) -> tuple[int, Any]:
        name, path = body.get("lora_name"), body.get("lora_path")
        if not name or not path:
            return problem(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.adapters:
            return problem(400, f"The lora adapter '{name}' has already been loaded.")
        if not (Path(path) / "adapter_config.json").is_file():
            return problem(404, f"No adapter found for '{path}'.")
        self.adapters[name] = path
        print(f"loaded {name}", flush=True)
        return 200, "Success"

    def unload(self, body: dict) -> tuple[int, Any]:
        if self.adapters.pop(body["lora_name"], None) is None:
            return problem(404, "not found")
        print(f"unloaded {body['lora_name']}", flush=True)
        return 200, "Success"

    def chat(self, body: dict) -> tuple[int, Any]:
        if body["model"] not in (self.name, *self.adapters):
            return problem(404, f"The model `{body['model']}` does not exist.")
        message = {"role": "assistant", "content": "hello"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}


NOTHING = (404, {"detail": "Not Found"})


def problem(status: int, message: str) -> tuple[int, Any]:
    return status, {"error": {"message": message}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["serve"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    given, others = parser.parse_known_args()
    plan_path = given.folder / "stand-in.json"
    plan = json.loads(plan_path.read_text()) if plan_path.exists() else {}
    print("INFO 11-22 13:00:00 [api_server.py:1] args:", *others, flush=True)
    if plan.get("says"):
        print(plan["says"], flush=True)
    if "status" in plan:
        sys.exit(plan["status"])
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(given.folder)])
    if plan.get("deaf"):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
    Handler.name, Handler.adapters = given.served_model_name, {}
    print("\x1b[32mINFO\x1b[0m: Application startup complete. <b>&", flush=True)
    ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
