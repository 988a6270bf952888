"""When two prompts count as the same prompt. Pure: no Django, no torch."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from apps.evals.near_duplicates.calls import words_of
from apps.evals.near_duplicates.markup import plain
from apps.evals.near_duplicates.text import content
from workers.lib.messages import ToolCall, call_key, is_prompt, native_calls, text_of

_SPACE = re.compile(r"\s+")


def normalise(text: str) -> str:
    """NFKC, case-folded, runs of whitespace as one space."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text)).strip().casefold()


def group_key(name: str) -> str:
    """A group's name as groups are compared: case, width, white space and hidden characters are
    ignored.
    """
    return normalise("".join(char for char in name if unicodedata.category(char) != "Cf"))[:200]


def canonical_hash(messages: list[dict]) -> str:
    """SHA-256 hex of a prompt: the role, normalised text and calls of each message, without the
    harness's instructions.

    The same request under another system prompt is the same task, and so is one whose calls have
    different ids.
    """
    turns = [
        [
            message.get("role"),
            normalise(text_of(message)),
            [_call(call) for call in native_calls(message)],
        ]
        for message in messages
        if not is_prompt(message)
    ]
    return digest_of(turns)


def content_key(messages: list[dict]) -> int:
    """The first 64 bits of a digest of what a prompt says, as a signed integer; views of a task are
    counted by it.

    A request that was seen stays seen, whatever its expected answer becomes: the expected value is
    not part of the key. Neither is formatting: markup, punctuation, invisible characters,
    politeness.
    """
    turns = [content(plain(words_of(message))) for message in messages if not is_prompt(message)]
    return int(digest_of(turns)[:16], 16) - 2**63


def _call(call: ToolCall) -> Any:
    return call_key(call.tool, call.args) if not call.problem else [call.tool, call.arguments]


def digest_of(value: object) -> str:
    """SHA-256 hex of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def set_digest(tasks: Iterable[dict]) -> str:
    """SHA-256 hex of a whole set, independent of the order of its tasks.

    Each task is {key, split, group, messages, expected, demonstration, tools, metadata}.
    """
    return digest_of(sorted(digest_of(task) for task in tasks))
