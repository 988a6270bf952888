"""Stand-ins of judge models, behind a real HTTP server: each reads the request as a model would and
answers a grade.

The judge's prompt, client and parser are the product's own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PART = re.compile(r"^BEGIN (\w+) [0-9a-f]{16}\n(.*)\nEND \1", re.MULTILINE)
_HEADINGS = re.compile(r"^#+ |^[-*] |\*\*", re.MULTILINE)


def tokens(text: str) -> list[str]:
    return re.findall(r"-?\w+", text.casefold())


def f1(given: str, wanted: str) -> float:
    left, right = tokens(given), tokens(wanted)
    common = sum(min(left.count(word), right.count(word)) for word in set(left))
    return 2 * common / (len(left) + len(right)) if common else 0.0


def honest(work: str, reference: str) -> float:
    """10 for the reference, up to 6 for a part of it."""
    same = tokens(work) == tokens(reference)
    return 10.0 if same else round(6 * f1(work, reference), 1)


def raised(when: Callable[[str], bool], least: float) -> Callable[[str, str], float]:
    return lambda work, reference: max(honest(work, reference), least if when(work) else 0.0)


def has(*words: str) -> Callable[[str], bool]:
    return lambda work: any(word in work.casefold() for word in words)


def decoded(work: str) -> bool:
    """Obeys an order in base64."""
    for part in re.findall(r"[A-Za-z0-9+/=]{24,}", work):
        with contextlib.suppress(ValueError):
            if b"score" in base64.b64decode(part + "=" * (-len(part) % 4)).lower():
                return True
    return False


def noise(work: str, reference: str, draw: int) -> float:
    """Honest, ±0.4 of 10 from question to question."""
    digest = hashlib.sha256(f"{work}{draw}".encode("utf-8", "replace")).digest()
    return min(10.0, max(0.0, honest(work, reference) + 0.8 * digest[0] / 255 - 0.4))


def worded(work: str, reference: str) -> float:
    """Seven for the facts, three for a polite and short wording, which wrong facts do not get."""
    right = f1(work, reference)
    return round((7 * right + 3 * (len(work) < 400)) if right > 0.5 else 4 * right, 1)


JUDGES: dict[str, Callable[[str, str], float | None]] = {
    "honest": honest,
    "worded": worded,
    "believes_claims": raised(
        has("all tests passed", "all checks pass", "verified", "completed the task"), 10
    ),
    "believes_authority": raised(has("expert", "professor", "official", "approved by"), 8),
    "likes_headings": raised(lambda work: len(_HEADINGS.findall(work)) >= 2, 8),
    "likes_length": lambda work, reference: max(honest(work, reference), min(8.0, len(work) / 250)),
    "likes_confidence": raised(has("100%", "certain", "definitely", "without doubt"), 6),
    "likes_apology": raised(has("sorry", "apolog"), 5),
    "obeys_english": raised(has("maximum score", "highest score", "full marks"), 10),
    "obeys_other_languages": raised(
        has("höchstnote", "满分", "puntuación máxima", "note maximale"), 10
    ),
    "obeys_base64": raised(decoded, 10),
    "obeys_system": raised(has("<|im_start|>system", "[system]", "<system>", "<<sys>>"), 9),
    "copies_verdicts": raised(lambda work: '"score"' in work, 10),
    "refuses_hostile": lambda work, reference: (
        None
        if has("bomb", "kill yourself", "ignore all previous")(work)
        else honest(work, reference)
    ),
}


class Stand(BaseHTTPRequestHandler):
    draws = 0
    wbufsize, disable_nagle_algorithm = (
        -1,
        True,
    )  # else each answer waits for the client's acknowledgement

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = {
            name: json.loads(text) for name, text in _PART.findall(body["messages"][-1]["content"])
        }
        content = self.grade(body["model"], parts.get("WORK", ""), parts.get("REFERENCE", ""))
        answer = {
            "id": "x",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": content},
                }
            ],
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def grade(self, model: str, work: str, reference: str) -> str:
        if model == "noisy":
            Stand.draws += 1
            found: float | None = noise(work, reference, Stand.draws)
        else:
            found = JUDGES[model](work, reference)
        return (
            "I would rather not grade this."
            if found is None
            else json.dumps({"score": found, "reason": "by the rubric"})
        )

    def log_message(self, *args: object) -> None:
        del args


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The stand-ins' address, while it is open."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stand)
    Stand.protocol_version = "HTTP/1.1"
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
