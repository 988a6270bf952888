"""Scores a policy's output in the Flywheel environment that this folder was exported from. Standard
library only.

`FLYWHEEL_API_KEY` is a key of the project with the scope `evaluate`; `FLYWHEEL_URL` overrides the
server's address. Samples that cannot be scored (the verifier failed, the server was unreachable)
are masked: `score` is None, never a silent 0.
"""

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

TRIES = 5
TIMEOUT_S = 120


def environment() -> dict:
    return json.loads(Path(__file__).with_name("environment.json").read_text(encoding="utf-8"))


def address() -> str:
    found = environment()
    return os.environ.get("FLYWHEEL_URL", found["server"]).rstrip("/") + found["path"]


def verified(row: dict, text: str) -> dict:
    """{"score": number or None, "why": sentence, and each component of the reward}."""
    message = {
        "type": "message",
        "id": "msg_0",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    response = {
        "id": "resp_0",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": "policy",
        "output": [message],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "metadata": {},
    }
    try:
        found = post("verify", row | {"response": response})
    except OSError as error:
        return {"score": None, "why": str(error)}
    if found.get("mask_sample"):
        return {"score": None, "why": str(found.get("failure_reason", "masked"))}
    return {"score": float(found["reward"]), "why": ""} | {
        name: float(value) for name, value in (found.get("reward_components") or {}).items()
    }


def post(route: str, body: dict) -> dict:
    """Retries while the server is unreachable or busy. Raises OSError."""
    key = os.environ.get("FLYWHEEL_API_KEY", "")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{address()}/{route}", json.dumps(body).encode(), headers)
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if attempt == TRIES or error.code not in (408, 429, 500, 502, 503, 504):
                raise OSError(
                    f"Flywheel answered {error.code}: {error.read(500).decode(errors='replace')}"
                ) from error
        except (urllib.error.URLError, TimeoutError) as error:
            if attempt == TRIES:
                raise OSError(f"Flywheel does not answer at {address()}: {error}") from error
        time.sleep(min(30, 2**attempt))
    raise AssertionError("unreachable")
