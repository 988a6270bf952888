"""What an answer used: as its server reports it, or estimated from the texts of request and answer.
Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from workers.lib.spending import estimate
from workers.lib.streamed import Events
from workers.lib.token_usage import Usage, parse

USAGE = re.compile(rb'"usage"\s*:\s*\{')
# Quotes inside a JSON string are escaped, so nothing that a model writes can match these patterns.
COUNTED = re.compile(
    rb'"((?:prompt|completion|input|output|cache_(?:read|creation)_input)_tokens)"'
    rb"\s*:\s*(\d{1,9})"
)
TAIL = 16 * 1024  # bytes at the end of an answer that are searched for its usage
ASKED = ("messages", "input", "instructions", "tools")
# Fields whose length says nothing of tokens.
MEDIA = ("data", "file_data", "b64_json", "encrypted_content")
ENVELOPE = ("id", "type", "role", "finish_reason", "logprobs", "status", "object", "usage", "model")


def reported_in(parts: Sequence[bytes]) -> int | None:
    """All tokens of an answer; None if it reports none."""
    used = reported_usage(parts)
    return used.tokens if used else None


def reported_usage(parts: Sequence[bytes]) -> Usage | None:
    """The tokens of an answer, which is not parsed for that. None if it reports none for what the
    model wrote; servers that do not count report 0.
    """
    tail = b"".join(parts[-8:])[-TAIL:]
    starts = [match.start() for match in USAGE.finditer(tail)]
    if not starts:
        return None
    counted = {
        name.decode(): int(count) for name, count in reversed(COUNTED.findall(tail, starts[-1]))
    }
    used = parse(counted)
    return used if used.output_tokens else None


def estimated(asked: dict[str, Any], text: str) -> Usage:
    """`asked`: the request's fields; `text`: what the model wrote."""
    question = "\n".join(_texts([asked.get(name) for name in ASKED], MEDIA))
    return Usage(estimate(question), estimate(text) if text else 0)


def written_in(answer: bytes, *, stream: bool) -> str:
    """All that a model wrote in an answer with status 200: every choice, in any field."""
    if not stream:
        return "\n".join(_written(_parsed(answer)))
    return "".join(text for data in Events().feed(answer) for text in _written(_parsed(data)))


def _written(event: Any) -> Iterator[str]:
    """Of a whole answer, or of one event of a stream, of either API. The events with which the
    Responses API repeats what it has streamed have no `delta`.
    """
    for name in ("choices", "output", "delta") if isinstance(event, dict) else ():
        yield from _texts(event.get(name), (*MEDIA, *ENVELOPE))


def _parsed(data: bytes | str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _texts(value: Any, but: Sequence[str]) -> Iterator[str]:
    """All texts in a JSON value, without pictures, sound, files, and the fields `but`."""
    if isinstance(value, str):
        if value and not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in but:
                yield from _texts(part, but)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, but)
