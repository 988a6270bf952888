"""Whether there is a NeMo Gym resources server at an address, before anything depends on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from workers.outgoing import RefusedAddress, check_url, client

TIMEOUT_S = 10.0
MAX_BYTES = 256 * 1024
QUESTION = {"verify_responses": []}


@dataclass(frozen=True)
class Found:
    """`ok`, and a sentence for a person either way."""

    ok: bool
    sentence: str


def test(url: str, *, allow_private: bool) -> Found:
    """Asks for the metrics of no rollouts: part of the protocol, and without effect. Never raises for what is there."""
    try:
        base = str(check_url(url, allow_private=allow_private)).rstrip("/")
        with client(allow_private=allow_private, timeout=TIMEOUT_S) as asked:
            return _read(*_post(asked, f"{base}/aggregate_metrics"))
    except RefusedAddress as error:
        return Found(False, str(error))
    except httpx.TimeoutException:
        return Found(False, f"No answer within {TIMEOUT_S:g} s. Is the server running, and may this machine reach it?")
    except (httpx.HTTPError, UnicodeError) as error:
        return Found(False, f"No connection: {str(error) or type(error).__name__}.")


def _post(asked: httpx.Client, url: str) -> tuple[int, bytes]:
    with asked.stream("POST", url, json=QUESTION) as response:
        body = bytearray()
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MAX_BYTES:
                break
        return response.status_code, bytes(body)


def _read(status: int, body: bytes) -> Found:
    if status in (401, 403):
        return Found(False, f"The server wants a key (HTTP {status}). Remote environments are called without one.")
    if 300 <= status < 400:
        return Found(False, f"The server redirects elsewhere (HTTP {status}). Give the final address.")
    if status in (404, 405):
        return Found(
            False, f"Something answers there, but it has no /aggregate_metrics (HTTP {status}): no resources server."
        )
    if status != 200:
        return Found(False, f"The server answered HTTP {status} to /aggregate_metrics.")
    if not isinstance(_json(body), dict):
        return Found(False, "The server answered with something that is no JSON object: no resources server.")
    return Found(True, "A resources server answers there.")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
