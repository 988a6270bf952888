"""When two prompts are the same prompt. Pure: no Django, no torch."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable

_SPACE = re.compile(r"\s+")


def normalise(text: str) -> str:
    """NFKC, case-folded, runs of whitespace as one space."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text)).strip().casefold()


def canonical_hash(messages: list[dict]) -> str:
    """SHA-256 hex of a prompt: the role and normalised content of each message, the system message left out.

    The system message belongs to the harness: the same request under another prompt is the same task.
    """
    turns = [
        [message.get("role"), normalise(_text(message.get("content"))), message.get("tool_calls") or []]
        for message in messages
        if message.get("role") != "system"
    ]
    return digest_of(turns)


def digest_of(value: object) -> str:
    """SHA-256 hex of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def set_digest(tasks: Iterable[dict]) -> str:
    """SHA-256 hex of a whole set, whatever the order of its tasks.

    Each task is {key, split, group, messages, expected, demonstration, tools, metadata}.
    """
    return digest_of(sorted(digest_of(task) for task in tasks))


def _text(content: object) -> str:
    """Content may be a string, null, or OpenAI content parts."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
