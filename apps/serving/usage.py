"""What an answer used: as its server reports it, or estimated from the texts of request and answer.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from workers.lib.spending import Usage, count_of, estimate

INPUT = ("prompt_tokens", "input_tokens")
OUTPUT = ("completion_tokens", "output_tokens")
USAGE = re.compile(rb'"usage"\s*:\s*\{')
# Quotes inside a JSON string are escaped, so nothing that a model writes can match these patterns.
COUNTED = re.compile(rb'"((?:prompt|completion|input|output)_tokens)"\s*:\s*(\d{1,9})')
TAIL = 16 * 1024  # bytes at the end of an answer that are searched for its usage
ASKED = ("messages", "input", "instructions", "tools")
MEDIA = (
    "data",
    "file_data",
    "b64_json",
    "encrypted_content",
)  # fields whose length says nothing of tokens


def reported_in(parts: Sequence[bytes]) -> int | None:
    """All tokens of an answer, which is not parsed for that. None if it reports none."""
    tail = b"".join(parts[-8:])[-TAIL:]
    starts = [match.start() for match in USAGE.finditer(tail)]
    if not starts:
        return None
    found = {
        name.decode(): int(count) for name, count in reversed(COUNTED.findall(tail, starts[-1]))
    }
    counts = [count for count in _counts(found) if count is not None]
    return sum(counts) if counts else None


def estimated(asked: dict[str, Any], answered: list[dict[str, Any]]) -> Usage:
    """`asked`: the request's fields; `answered`: the messages of the answer."""
    question = "\n".join(_texts([asked.get(name) for name in ASKED]))
    answer = "\n".join(_texts([message | {"role": ""} for message in answered]))
    return Usage(estimate(question), estimate(answer) if answered else 0)


def _counts(used: dict[str, Any]) -> tuple[int | None, int | None]:
    asked, answered = (
        next((count for name in names if (count := count_of(used.get(name))) is not None), None)
        for names in (INPUT, OUTPUT)
    )
    return asked, answered


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value, without pictures, sound and files."""
    if isinstance(value, str):
        if value and not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in MEDIA:
                yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
